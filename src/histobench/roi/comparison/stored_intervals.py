"""Intervals of stored runs: `X_intervals.json`, which every table and page shows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_plain_text, write_json
from histobench.core.plain_data import parse_json
from histobench.roi.comparison.episode_intervals import crossed_entries, resampled_with
from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.comparison.metric_intervals import METHOD, no_interval, run_metric_intervals
from histobench.roi.comparison.sampling_units import SamplingUnits, scored
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS
from histobench.statistics.intervals import Interval

#: Goes up when the same predictions get other intervals than before; files of other rules are made anew.
RULES = 8


def write_default_intervals(run: StoredRun, *, force: bool = False) -> dict[str, Any]:
    """Write a run's `X_intervals.json` and return its content; a current file is kept."""
    files = TaskFiles.beside(run.path)
    digest = predictions_digest(files)
    existing = None if force else current_content(files.intervals, digest, rules=RULES)
    if existing is not None:
        return existing
    content = interval_content(run) | {"predictions_sha256": digest}
    write_json(files.intervals, content)
    return content


def stored_default_intervals(run: StoredRun) -> dict[str, Any] | None:
    """The content of a run's `X_intervals.json`; None unless it is of these predictions and rules."""
    files = TaskFiles.beside(run.path)
    if not files.intervals.exists():
        return None
    return current_content(files.intervals, predictions_digest(files), rules=RULES)


def shown_intervals(run: StoredRun) -> dict[str, Any]:
    """The interval of every metric of a run, from its file or, where that is not current, computed now."""
    stored = stored_default_intervals(run)
    try:
        return stored or interval_content(run)
    except HistobenchError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise  # a fault of the disk that may pass is no property of the run
        none = no_interval(str(error))
        return {"metrics": {name: _entry(value, none) for name, value in run.metrics.items()}}


def current_content(path: Path, digest: str, **wanted: int) -> dict[str, Any] | None:
    """The stored intervals, unless they are broken, of other predictions, or lack what is `wanted`."""
    try:
        content = parse_json(read_plain_text(path))
        current = content["predictions_sha256"] == digest
        current = current and all(content.get(name) == value for name, value in wanted.items())
        return content if current and content["metrics"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interval_content(run: StoredRun) -> dict[str, Any]:
    """The interval of every metric of a run, as plain JSON values, or the reason why there is none."""
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
        content |= {"num_episodes": n_episodes, "left_out": resampled_with(run, n_episodes, units)}
        return content | {"metrics": crossed_entries(run, units), "per_class": {}}
    values, intervals = run_metric_intervals(predictions)
    entries = {name: _entry(value, intervals[name]) for name, value in values.items()}
    metrics = {name: entry for name, entry in entries.items() if "@" not in name}
    for name, value in run.metrics.items():
        computed = metrics.get(name, {}).get("value")
        if computed is None or value is None or abs(computed - value) > 1e-6:
            reason = run.undefined_metrics.get(name) if value is None else metrics.get(name, {}).get("reason")
            metrics[name] = _entry(value, no_interval(reason or "not a metric of the stored predictions"))
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
        metric: _entry(float(found.values[0]), table.intervals(metric)[run.identity.encoder])
        for metric, found in table.found.items()
    }
    metrics = {name: entry for name, entry in entries.items() if "@" not in name}
    content = _about(run, table.units) | {"left_out": table.resampled}
    return content | {"metrics": metrics, "per_class": by_class_of(entries, run.classes)}


def _entry(value: float | None, interval: Interval) -> dict[str, Any]:
    return {
        "value": None if value is None or not math.isfinite(value) else value,
        "ci_lower": interval.low,
        "ci_upper": interval.high,
        "method": interval.method,
        "reason": interval.reason,
    }


def predictions_digest(files: TaskFiles) -> str:
    digest = hashlib.sha256()
    for path in (files.detailed, files.per_episode):
        if path.exists():
            digest.update(read_bytes(path))
    if files.per_episode.exists() and files.episode_predictions.exists():
        digest.update(b"predictions of every episode")
    return digest.hexdigest()


def named(run: StoredRun) -> dict[str, str]:
    return {
        "task_name": run.task,
        "setting": run.setting,
        "dataset": run.identity.dataset,
        "encoder": run.identity.encoder,
        "preset": run.identity.preset,
    }


def by_class_of(
    everything: Mapping[str, dict[str, Any]], classes: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each class its metrics, from the entries named `recall@0` and the like."""
    table: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in classes}
    for key, entry in everything.items():
        name, found, label = key.partition("@")
        if found and int(label) < len(classes):
            table[classes[int(label)]][name] = entry
    return table
