"""Intervals of stored runs: `X_intervals.json`, which every table and page shows, and the older bootstrap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_plain_text, unreadable, write_json
from histobench.core.plain_data import parse_json
from histobench.roi.comparison.episode_intervals import (
    NO_FILE,
    NOT_KEPT,
    crossed_entries,
    resampled_with,
)
from histobench.roi.comparison.metric_intervals import METHOD, run_metric_intervals
from histobench.roi.comparison.run_intervals import (
    BootstrapSettings,
    by_class_of,
    named,
    run_intervals,
)
from histobench.roi.comparison.sampling_units import SamplingUnits, scored
from histobench.roi.comparison.target_table import TargetTable
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS
from histobench.statistics.intervals import Interval

SUMMARY = "bootstrap_ci_summary.json"
#: Goes up when the same predictions get other intervals than before; files of other rules are made anew.
RULES = 3


@dataclass(frozen=True)
class StoredIntervals:
    """The bootstrap intervals of one run and how they came about."""

    run: StoredRun
    path: Path
    content: dict[str, Any] | None  # None where the run cannot be resampled
    skipped: str | None = None  # why nothing was computed
    failure: str | None = None


def write_default_intervals(run: StoredRun, *, force: bool = False) -> dict[str, Any]:
    """Write a run's `X_intervals.json` and return its content; a current file is kept."""
    files = TaskFiles.beside(run.path)
    digest = predictions_digest(files)
    existing = None if force else _current(files.intervals, digest, rules=RULES)
    if existing is not None:
        return existing
    content = interval_content(run) | {"predictions_sha256": digest}
    write_json(files.intervals, content)
    return content


def stored_default_intervals(run: StoredRun) -> dict[str, Any] | None:
    """The content of a run's `X_intervals.json`; None unless it is of these predictions and rules."""
    files = TaskFiles.beside(run.path)
    return (
        _current(files.intervals, predictions_digest(files), rules=RULES)
        if files.intervals.exists()
        else None
    )


def shown_intervals(run: StoredRun) -> dict[str, Any]:
    """The interval of every metric of a run, from its file or, where that is not current, computed now."""
    stored = stored_default_intervals(run)
    if stored is not None:
        return stored
    try:
        return interval_content(run)
    except HistobenchError as error:
        none = Interval(None, None, 0.95, METHOD, reason=str(error))
        return {"metrics": {name: _entry(value, none) for name, value in run.metrics.items()}}


def _current(path: Path, digest: str, **wanted: int) -> dict[str, Any] | None:
    """The stored intervals, unless they are broken, of other predictions, or lack what is `wanted`."""
    try:
        content = parse_json(read_plain_text(path))
        current = content["predictions_sha256"] == digest
        current = current and all(content.get(name) == value for name, value in wanted.items())
        return content if current and content["metrics"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interval_content(run: StoredRun) -> dict[str, Any]:
    """The interval of every metric of a run, as plain JSON values.

    Means over episodes or training runs have intervals over both these and the test units; where what each of
    them predicted was not kept, they have none, and the reason.
    """
    if run.target != CLASS:
        return _content_of_target(run)
    predictions = scored(run.predictions)
    if len(predictions) == 0:
        raise HistobenchError(f"{TaskFiles.beside(run.path).detailed} holds no predictions")
    units = SamplingUnits.of(predictions)
    content = _about(run, units)
    columns = run.per_episode
    if columns is not None:
        n_episodes = len(next(iter(columns.values())))
        found = {} if run.episodes is None else crossed_entries(run.episodes, units, run.metrics)
        if found:
            content["left_out"] = resampled_with(run, n_episodes, units)
        why = Interval(None, None, 0.95, METHOD, reason=NO_FILE if run.episodes is None else NOT_KEPT)
        metrics = {name: found.get(name) or _entry(value, why) for name, value in run.metrics.items()}
        return content | {"num_episodes": n_episodes, "metrics": metrics, "per_class": {}}
    values, intervals = run_metric_intervals(predictions)
    entries = {
        name: _entry(None if value != value else value, intervals[name]) for name, value in values.items()
    }
    metrics = {name: entry for name, entry in entries.items() if "@" not in name}
    for name, value in run.metrics.items():
        computed = metrics.get(name, {}).get("value")
        if computed is None or value is None or abs(computed - value) > 1e-6:
            reason = run.undefined_metrics.get(name) if value is None else metrics.get(name, {}).get("reason")
            other = reason or "not a metric of the stored predictions"
            metrics[name] = _entry(value, Interval(None, None, 0.95, METHOD, reason=other))
    return content | {"metrics": metrics, "per_class": by_class_of(entries, predictions.classes)}


def _about(run: StoredRun, units: SamplingUnits) -> dict[str, Any]:
    return {
        **named(run),
        "method": METHOD,
        "rules": RULES,
        "confidence_level": 0.95,
        "num_samples": len(units.labels),
        "num_groups": units.n_groups,
        "left_out": units.resampled,
        "caution": units.caution(),
    }


def _content_of_target(run: StoredRun) -> dict[str, Any]:
    table = TargetTable.of({run.identity.encoder: run.target_predictions})
    entries = {
        metric: _entry(
            float(found.values[0]) if np.isfinite(found.values[0]) else None,
            table.intervals(metric)[run.identity.encoder],
        )
        for metric, found in table.found.items()
    }
    metrics = {name: entry for name, entry in entries.items() if "@" not in name}
    return _about(run, table.units) | {"metrics": metrics, "per_class": by_class_of(entries, run.classes)}


def _entry(value: float | None, interval: Interval) -> dict[str, Any]:
    return {
        "value": value,
        "ci_lower": interval.low,
        "ci_upper": interval.high,
        "method": interval.method,
        "reason": interval.reason,
    }


def predictions_digest(files: TaskFiles) -> str:
    """Of the predictions and the episodes: what the intervals depend on."""
    digest = hashlib.sha256()
    for path in (files.detailed, files.per_episode):
        if path.exists():
            try:
                digest.update(read_bytes(path))
            except OSError as error:
                raise unreadable(path, error) from error
    if files.per_episode.exists() and files.episode_predictions.exists():
        digest.update(b"predictions of every episode")
    return digest.hexdigest()


def write_all_intervals(
    runs: list[StoredRun], n_bootstrap: int | None, *, summary_in: Path | None = None
) -> None:
    """Write the intervals of runs that were just evaluated, and bootstrap intervals where asked for.

    A run without usable predictions gets none: what shows it says why.
    """
    if n_bootstrap is not None:
        found = list(bootstrap_runs(runs, BootstrapSettings(n_bootstrap)))
        if summary_in is not None:
            write_summary(summary_in, found)
        return
    for run in runs:
        with suppress(HistobenchError):
            write_default_intervals(run)


def bootstrap_runs(
    runs: list[StoredRun], settings: BootstrapSettings, *, force: bool = False
) -> Iterator[StoredIntervals]:
    """Write and yield the bootstrap intervals of each run; those of the same predictions are kept.

    Beside them the intervals that tables show are written (`write_default_intervals`).

    A run that cannot be read or resampled says so in `failure` and does not stop the others.
    """
    for run in runs:
        files = TaskFiles.beside(run.path)
        digest = predictions_digest(files)
        try:
            write_default_intervals(run, force=force)
            existing = None if force else _current(files.bootstrap, digest)
            content = existing or run_intervals(run, settings)
        except HistobenchError as error:
            where = "" if str(run.path.parent) in str(error) else f"{run.path}: "
            yield StoredIntervals(run, files.bootstrap, None, failure=f"{where}{error}")
            continue
        if existing is None:
            content["predictions_sha256"] = digest
            write_json(files.bootstrap, content)
        skipped = None if existing is None else _why_skipped(existing, settings)
        yield StoredIntervals(run, files.bootstrap, content, skipped)


def write_summary(results_dir: Path, intervals: list[StoredIntervals]) -> Path:
    """Write `bootstrap_ci_summary.json`: value and bounds of every metric of every run."""
    path = results_dir / SUMMARY
    rows = [_summary_row(results_dir, item.path, item.content) for item in intervals if item.content]
    failures = [
        {"file": item.run.path.relative_to(results_dir).as_posix(), "reason": item.failure}
        for item in intervals
        if item.failure
    ]
    write_json(path, {"runs": rows, "without_intervals": failures})
    return path


def _summary_row(results_dir: Path, path: Path, content: dict[str, Any]) -> dict[str, Any]:
    kept = ("dataset", "encoder", "task_name", "setting", "preset", "n_bootstrap", "random_state", "method")
    row = {name: content.get(name) for name in (*kept, "resampled", "num_samples", "num_groups")}
    row["file"] = path.relative_to(results_dir).as_posix()
    row["metrics"] = {
        name: {key: entry.get(key) for key in ("value", "ci_lower", "ci_upper", "reason")}
        for name, entry in content["metrics"].items()
    }
    return row


def _why_skipped(existing: dict[str, Any], settings: BootstrapSettings) -> str:
    other = [
        f"{name} {existing.get(name)}"
        for name, value in asdict(settings).items()
        if existing.get(name) != value
    ]
    if other:
        return f"intervals exist with {', '.join(other)}; `force` computes them again"
    return "the same intervals already exist"
