"""Bootstrap intervals of every metric of one stored run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.episode_intervals import (
    NO_FILE,
    NOT_KEPT,
    crossed_entries,
    missing_entry,
    resampled_with,
)
from histobench.roi.comparison.metric_function import all_metrics, over_all_classes
from histobench.roi.comparison.sampling_units import RESAMPLED, SamplingUnits, check_random_state, design_of
from histobench.roi.results.layout import TaskFiles
from histobench.statistics.intervals import METHODS, Interval, bca_interval, percentile_interval
from histobench.statistics.resampling import (
    Evaluate,
    SamplingDesign,
    jackknife_of_all,
    jackknife_strata,
    replicates_of_all,
    sampling_design,
)

if TYPE_CHECKING:
    from histobench.roi.results.stored_run import StoredRun

Floats = NDArray[np.float64]

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
    noted = NO_FILE if run.episodes is None else NOT_KEPT
    over_episodes = {
        name: entry | {"over": "episodes", "note": noted} for name, entry in over_episodes.items()
    }
    if run.episodes is None:
        content |= {"resampling": "plain", "resampled": "episodes"}
    else:
        units = SamplingUnits.of(predictions)
        over = resampled_with(run, n_episodes, units)
        content |= {"resampling": CROSSED, "resampled": over}
        over_episodes |= crossed_entries(run.episodes, units, run.metrics)
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
            found[name] = _entry(value, values, bca_interval(values, value, left_out[name], strata=strata))
        else:
            found[name] = _entry(value, values, percentile_interval(values))
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


def _entry(value: float, values: Floats, interval: Interval) -> dict[str, Any]:
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
