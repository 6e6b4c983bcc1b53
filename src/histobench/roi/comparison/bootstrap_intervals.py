"""The older bootstrap: percentile and BCa intervals of stored runs, as `histobench bootstrap` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.roi.comparison.episode_intervals import crossed_entries, missing_entry, resampled_with
from histobench.roi.comparison.metric_function import all_metrics, over_all_classes
from histobench.roi.comparison.sampling_units import (
    RESAMPLED,
    SamplingUnits,
    check_random_state,
    design_of,
    scored,
)
from histobench.roi.comparison.stored_intervals import (
    by_class_of,
    current_content,
    named,
    predictions_digest,
    write_default_intervals,
)
from histobench.roi.metrics.metric_catalogue import CALIBRATION_METRICS
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
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
