"""Intervals of stored runs: `X_intervals.json`, which every table and page shows, and the older bootstrap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_plain_text, unreadable, write_json
from histobench.core.plain_data import parse_json
from histobench.roi.comparison.episode_intervals import crossed_entries, missing_entry, resampled_with
from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.comparison.metric_function import all_metrics, over_all_classes
from histobench.roi.comparison.metric_intervals import METHOD, no_interval, run_metric_intervals
from histobench.roi.comparison.sampling_units import (
    RESAMPLED,
    SamplingUnits,
    check_random_state,
    design_of,
    scored,
)
from histobench.roi.metrics.metric_catalogue import CALIBRATION_METRICS
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS
from histobench.statistics.intervals import METHODS, Interval, bca_interval, percentile_interval
from histobench.statistics.resampling import (
    Evaluate,
    SamplingDesign,
    jackknife_of_all,
    jackknife_strata,
    replicates_of_all,
    sampling_design,
)

Floats = NDArray[np.float64]

SUMMARY = "bootstrap_ci_summary.json"
#: Goes up when the same predictions get other intervals than before; files of other rules are made anew.
RULES = 4
#: What is drawn again where episodes and test units both are.
CROSSED = "crossed"


@dataclass(frozen=True)
class BootstrapSettings:
    """How intervals are made."""

    n_bootstrap: int = 1000
    random_state: int = 42
    method: str = "percentile"  # or "bca"

    def __post_init__(self) -> None:
        if self.n_bootstrap < 2:
            raise HistobenchError(f"`n_bootstrap` must be at least 2, not {self.n_bootstrap}")
        check_random_state(self.random_state)
        if self.method not in METHODS:
            raise HistobenchError(f"unknown method {self.method!r}; known: {', '.join(METHODS)}")


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
        none = no_interval(str(error))
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
        content |= {"num_episodes": n_episodes, "left_out": resampled_with(run, n_episodes, units)}
        return content | {"metrics": crossed_entries(run, units), "per_class": {}}
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
            metrics[name] = _entry(value, no_interval(other))
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


# Bootstrap intervals of every metric of one stored run.


def run_intervals(run: StoredRun, settings: BootstrapSettings) -> dict[str, Any]:
    """What `*_bootstrap_ci.json` holds: an interval for every metric of the run's file.

    Where they are means over episodes or runs, the intervals are over episodes and test units, as far as the
    predictions of each episode were kept; `averaged_predictions` are then the metrics, over test units, of
    the mean probabilities.
    """
    predictions = run.predictions
    if len(predictions) == 0:
        raise HistobenchError(
            f"{TaskFiles.beside(run.path).detailed} holds no predictions: nothing to resample"
        )
    design = design_of(predictions)
    evaluate = over_all_classes(all_metrics(predictions, by_class=True), predictions.labels)
    everything = intervals_of(evaluate, design, settings)
    over_images = {name: entry for name, entry in everything.items() if "@" not in name}
    by_class = by_class_of(everything, predictions.classes)
    reasons = run.undefined_metrics
    content: dict[str, Any] = {
        **named(run),
        **asdict(settings),
        "confidence_level": 0.95,
        "num_samples": len(predictions),
        "num_groups": design.n_units if design.is_clustered else None,
    }
    episodes = run.per_episode
    if episodes is None:
        content |= {"resampling": design.kind, "resampled": RESAMPLED[design.kind]}
        content["metrics"] = _for_reported(over_images, run.metrics, reasons)
        content["per_class"] = by_class
        return content
    n_episodes = len(next(iter(episodes.values())))
    over_episodes = intervals_of(means_of(episodes), sampling_design(n_episodes), settings)
    noted = "over episodes alone, for these test images"
    over_episodes = {
        name: entry | {"over": "episodes", "note": noted} for name, entry in over_episodes.items()
    }
    if run.episodes is None:
        content |= {"resampling": "plain", "resampled": "episodes"}
    else:
        known = scored(predictions)
        units = SamplingUnits.of(known)
        content |= {"resampling": CROSSED, "resampled": resampled_with(run, n_episodes, units)}
        found = crossed_entries(run, units)
        over_episodes |= {
            name: entry
            for name, entry in found.items()
            if entry["ci_lower"] is not None or name in CALIBRATION_METRICS
        }
    content["num_episodes"] = n_episodes
    content["metrics"] = _for_reported(over_episodes, run.metrics, reasons)
    content["averaged_predictions"] = {
        "resampling": design.kind,
        "resampled": RESAMPLED[design.kind],
        "metrics": over_images,
        "per_class": by_class,
    }
    return content


def named(run: StoredRun) -> dict[str, str]:
    """What a file of intervals says about its run."""
    return {
        "task_name": run.task,
        "setting": run.setting,
        "dataset": run.identity.dataset,
        "encoder": run.identity.encoder,
        "preset": run.identity.preset,
    }


def intervals_of(
    evaluate: Evaluate, design: SamplingDesign, settings: BootstrapSettings
) -> dict[str, dict[str, Any]]:
    """Value, interval, mean and spread of every metric of `evaluate`."""
    observed = evaluate(np.ones((1, design.n_samples), dtype=np.int32))
    resampled = replicates_of_all(
        evaluate, design, n_resamples=settings.n_bootstrap, seed=settings.random_state
    )
    left_out = jackknife_of_all(evaluate, design) if settings.method == "bca" else {}
    strata = jackknife_strata(design)
    found: dict[str, dict[str, Any]] = {}
    for name, values in resampled.items():
        value = float(observed[name][0])
        if not np.isfinite(value):
            found[name] = missing_entry(None, "undefined on the test set")
        elif design.n_units < 2:
            found[name] = missing_entry(value, "a single group or image cannot be drawn again")
        elif settings.method == "bca":
            found[name] = _drawn_entry(
                value, values, bca_interval(values, value, left_out[name], strata=strata)
            )
        else:
            found[name] = _drawn_entry(value, values, percentile_interval(values))
    return found


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


def means_of(columns: Mapping[str, Floats]) -> Evaluate:
    """The mean of each column (`StoredRun.per_episode`) over the drawn episodes, undefined ones left out."""
    names = list(columns)
    table = np.stack([columns[name] for name in names], axis=1)
    defined = np.isfinite(table).astype(np.float64)
    filled = np.where(defined > 0, table, 0.0)

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        with np.errstate(invalid="ignore"):
            means = (counts @ filled) / (counts @ defined)
        return {name: means[:, k] for k, name in enumerate(names)}

    return evaluate


def _drawn_entry(value: float, values: Floats, interval: Interval) -> dict[str, Any]:
    defined = values[np.isfinite(values)]
    return {
        "value": value,
        "ci_lower": interval.low,
        "ci_upper": interval.high,
        "mean": float(defined.mean()) if len(defined) else None,
        "std": float(defined.std(ddof=1)) if len(defined) > 1 else None,
        "method": interval.method,
        "n_valid": interval.n_valid,
        "reason": interval.reason,
    }


def _for_reported(
    found: dict[str, dict[str, Any]], reported: Mapping[str, float | None], reasons: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The intervals in the run's own order, with its reasons; a metric that cannot be resampled says so."""
    table: dict[str, dict[str, Any]] = {}
    for name, value in reported.items():
        entry = dict(
            found.get(name) or missing_entry(value, "not a metric of the stored class probabilities")
        )
        if entry["value"] is None:
            entry["reason"] = reasons.get(name) or entry["reason"]
        elif value is not None and abs(entry["value"] - value) > 1e-6:
            entry["reported_value"] = value
            entry["note"] = "the interval belongs to the stored predictions, the reported value to the file"
        table[name] = entry
    return table | {name: entry for name, entry in found.items() if name not in table}
