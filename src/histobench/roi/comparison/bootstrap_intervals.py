"""The older bootstrap: percentile intervals of stored runs, as `histobench bootstrap` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.roi.comparison.episode_intervals import crossed_entries, missing_entry, resampled_with
from histobench.roi.comparison.metric_intervals import all_metrics
from histobench.roi.comparison.sampling_units import RESAMPLED, SamplingUnits, image_groups, scored
from histobench.roi.comparison.stored_intervals import (
    by_class_of,
    current_content,
    named,
    predictions_digest,
    write_default_intervals,
)
from histobench.roi.metrics.metric_catalogue import CALIBRATION_METRICS, CLASS_MEANS
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.intervals import percentile_interval
from histobench.statistics.resampling import (
    Counts,
    Evaluate,
    Floats,
    SamplingDesign,
    design_for_labels,
    replicates_of_all,
    sampling_design,
)

SUMMARY = "bootstrap_ci_summary.json"
Entries = dict[str, dict[str, Any]]  # of metrics, by name


@dataclass(frozen=True)
class BootstrapSettings:
    n_bootstrap: int = 1000
    random_state: int = 42
    method: str = field(default="percentile", init=False)  # files say so


@dataclass(frozen=True)
class StoredIntervals:
    run: StoredRun
    path: Path
    content: dict[str, Any] | None  # None where the run cannot be resampled
    skipped: str | None = None  # why nothing was computed
    failure: str | None = None


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

    Beside them the intervals that tables show are written. A run that cannot be read or resampled says so in
    `failure` and does not stop the others.
    """
    for run in runs:
        files = TaskFiles.beside(run.path)
        digest = predictions_digest(files)
        try:
            write_default_intervals(run, force=force)
            existing = None if force else current_content(files.bootstrap, digest)
            content = existing or run_intervals(run, settings)
        except (HistobenchError, OSError) as error:
            where = "" if str(run.path.parent) in str(error) else f"{run.path}: "
            yield StoredIntervals(run, files.bootstrap, None, failure=f"{where}{error}")
            continue
        if existing is None:
            content["predictions_sha256"] = digest
            write_json(files.bootstrap, content)
        skipped = None if existing is None else _why_skipped(existing, settings)
        yield StoredIntervals(run, files.bootstrap, content, skipped)


def write_summary(results_dir: Path, intervals: list[StoredIntervals]) -> Path:
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
    known = {name: existing.get(name) for name in asdict(settings)}
    other = [f"{name} {known[name]}" for name, value in asdict(settings).items() if known[name] != value]
    if other:
        return f"intervals exist with {', '.join(other)}; `force` computes them again"
    return "the same intervals already exist"


def run_intervals(run: StoredRun, settings: BootstrapSettings) -> dict[str, Any]:
    """What `*_bootstrap_ci.json` holds: an interval for every metric of the run's file.

    Of means over episodes or runs, `averaged_predictions` are the metrics of the mean probabilities.
    """
    predictions = run.predictions
    design = design_for_labels(predictions.labels, image_groups(predictions))
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
    over_episodes = {name: one | {"over": "episodes", "note": noted} for name, one in over_episodes.items()}
    if run.episodes is None:
        content |= {"resampling": "plain", "resampled": "episodes"}
    else:
        units = SamplingUnits.of(scored(predictions))
        content |= {"resampling": "crossed", "resampled": resampled_with(run, n_episodes, units)}
        for name, entry in crossed_entries(run, units).items():
            if entry["ci_lower"] is not None or name in CALIBRATION_METRICS:
                over_episodes[name] = entry
    content["num_episodes"] = n_episodes
    content["metrics"] = _for_reported(over_episodes, run.metrics, reasons)
    content["averaged_predictions"] = {
        "resampling": design.kind,
        "resampled": RESAMPLED[design.kind],
        "metrics": over_images,
        "per_class": by_class,
    }
    return content


def over_all_classes(evaluate: Evaluate, labels: NDArray[np.int64]) -> Evaluate:
    """Make means over classes undefined on counts that lack a class of `labels`."""
    of_class = (labels[:, None] == np.unique(labels)).astype(np.float64)

    def whole(counts: Counts) -> Mapping[str, Floats]:
        lacking = (counts @ of_class == 0).any(axis=1)
        values = evaluate(counts)
        if not lacking.any():
            return values
        return {
            name: np.where(lacking, np.nan, found) if name in CLASS_MEANS else found
            for name, found in values.items()
        }

    return whole


def intervals_of(evaluate: Evaluate, design: SamplingDesign, settings: BootstrapSettings) -> Entries:
    observed = evaluate(np.ones((1, design.n_samples), dtype=np.int32))
    count, seed = settings.n_bootstrap, settings.random_state
    resampled = replicates_of_all(evaluate, design, n_resamples=count, seed=seed)
    found: Entries = {}
    for name, values in resampled.items():
        value = float(observed[name][0])
        if not np.isfinite(value):
            found[name] = missing_entry(None, "undefined on the test set")
        elif design.n_units < 2:
            found[name] = missing_entry(value, "a single group or image cannot be drawn again")
        else:
            interval, defined = percentile_interval(values), values[np.isfinite(values)]
            found[name] = {
                "value": value,
                "ci_lower": interval.low,
                "ci_upper": interval.high,
                "mean": float(defined.mean()) if len(defined) else None,
                "std": float(defined.std(ddof=1)) if len(defined) > 1 else None,
                "method": interval.method,
                "n_valid": interval.n_valid,
                "reason": interval.reason,
            }
    return found


def means_of(columns: Mapping[str, Floats]) -> Evaluate:
    """The mean of each column (`StoredRun.per_episode`) over the drawn episodes, undefined ones left out."""
    table = np.stack(list(columns.values()), axis=1)
    defined = np.isfinite(table).astype(np.float64)
    filled = np.where(defined > 0, table, 0.0)

    def evaluate(counts: Counts) -> Mapping[str, Floats]:
        with np.errstate(invalid="ignore"):
            means = (counts @ filled) / (counts @ defined)
        return dict(zip(columns, means.T, strict=True))

    return evaluate


def _for_reported(
    found: Entries, reported: Mapping[str, float | None], reasons: Mapping[str, str]
) -> Entries:
    """The intervals in the run's own order, with its reasons; a metric that cannot be resampled says so."""
    table: dict[str, dict[str, Any]] = {}
    for name, value in reported.items():
        entry = dict(found.get(name) or missing_entry(value, "not a metric of the stored probabilities"))
        if entry["value"] is None:
            entry["reason"] = reasons.get(name) or entry["reason"]
        elif value is not None and abs(entry["value"] - value) > 1e-6:
            entry["reported_value"] = value
            entry["note"] = "the interval belongs to the stored predictions, the reported value to the file"
        table[name] = entry
    return table | {name: entry for name, entry in found.items() if name not in table}
