"""The interval of every metric by the one rule of `statistics.jackknife`, and why some metrics get none.

The rule needs a metric's range, its values with each unit left out, and its unseen moves (`unseen_moves`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.sampling_units import FEWEST_POSITIVES, SamplingUnits, scored
from histobench.roi.comparison.unseen_moves import UnseenMoves, parts_of
from histobench.roi.metrics.batched import evaluate_left_out, evaluate_resamples, summing_matrix
from histobench.roi.metrics.formulas import SMALLEST_PROBABILITY, label_metrics_of
from histobench.roi.metrics.metric_catalogue import LABEL_METRICS, known_metric, metric_of
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut, bounds
from histobench.statistics.resampling import (
    Counts,
    Evaluate,
    Floats,
    Metric,
    jackknife_of_all,
    sampling_design,
)

METHOD = "wilson-t"
NO_CALIBRATION_INTERVAL = (
    "no interval: calibration errors are biased upward, and no known method gives reliable intervals"
)


def run_metric_intervals(predictions: Predictions) -> tuple[dict[str, float], dict[str, Interval]]:
    """Value and interval of every metric of one run, those of its classes as `recall@0` and the like."""
    known = scored(predictions)
    units = SamplingUnits.of(known)
    evaluate = all_metrics(known, by_class=True)
    observed = evaluate(np.ones((1, len(known)), dtype=np.int32))
    if units.n_units < 2:
        left_out: Mapping[str, Floats] = dict.fromkeys(observed, np.full(1, np.nan))
    elif units.group_of is None:
        given = known.probabilities, known.labels
        left_out = evaluate_left_out(*given, predicted=known.predicted, by_class=True)
    else:
        design = sampling_design(len(known), clusters=units.group_of)
        left_out = jackknife_of_all(evaluate, design, max_blocks=units.n_units)
    intervals, moves = {}, UnseenMoves([known], units)
    for name, values in observed.items():
        found = moves.of(name, LeaveOneOut((name,), values, left_out[name][:, None]))
        intervals[name] = metric_intervals(name, found, units)[name]
    return {name: float(values[0]) for name, values in observed.items()}, intervals


def metric_intervals(
    metric: str, found: LeaveOneOut, units: SamplingUnits, *, level: float = 0.95
) -> dict[str, Interval]:
    """The interval of every column of one metric, or the reason why there is none."""
    reason = why_no_interval(metric, units)
    if reason is not None:
        return dict.fromkeys(found.names, no_interval(reason, level))
    low, high = bounds(found, range_of(metric, units.n_columns), level=level)
    count = len(found.left_out)
    return {
        name: Interval.of(
            a, b, level=level, method=METHOD, n_valid=count, why_none=_undefined(metric, units, value)
        )
        for name, a, b, value in zip(found.names, low, high, found.values, strict=True)
    }


def no_interval(reason: str, level: float = 0.95) -> Interval:
    return Interval(None, None, level, METHOD, 0, reason)


def why_no_interval(metric: str, units: SamplingUnits) -> str | None:
    """Why these units allow no interval of a metric, and no test of its differences; None where they do."""
    name, label = parts_of(metric)
    facts = metric_of(name)
    if facts.kind == "calibration":
        return NO_CALIBRATION_INTERVAL
    if units.n_units < 2:
        return "one unit does not show the spread"
    few = units.too_few(by_class=label is not None or not facts.by_size, label=label)
    if few is not None:
        return few
    if facts.kind == "auprc" and name != "micro_auprc" and units.group_of is None:
        sizes = np.where(units.class_sizes > 0, units.class_sizes, len(units.labels) + 1)
        rarest = int(sizes.argmin()) if label is None else label
        if 0 < units.class_sizes[rarest] < FEWEST_POSITIVES:
            count, needed = units.class_sizes[rarest], FEWEST_POSITIVES
            return f"too few images of class {units.name(rarest)}: {count} (an interval needs {needed})"
    return None


def range_of(metric: str, n_classes: int) -> tuple[float, float]:
    name = metric.partition("@")[0]
    scale = metric_of(name).scale
    if metric_of(name).kind == "target" and scale in ("log", "unexplained"):
        return (0.0, np.inf) if scale == "log" else (-np.inf, 1.0)
    if scale == "log":
        return 0.0, float(-np.log(SMALLEST_PROBABILITY))
    if scale == "sum of squares":
        return 0.0, 2.0 if n_classes > 2 else 1.0
    return (-1.0 if scale == "fisher" else 0.0), 1.0


def _undefined(metric: str, units: SamplingUnits, value: float) -> str:
    label = parts_of(metric)[1]
    if not np.isfinite(value):
        return "undefined on the test set"
    present = np.flatnonzero(units.class_sizes > 0)
    rarest = int(present[units.units_of_class[present].argmin()]) if label is None else label
    if units.units_of_class[rarest] == 1:
        return f"class {units.name(rarest)} occurs in one of the {units.word} only"
    return f"undefined when one of the {units.word} is left out"


def all_metrics(predictions: Predictions, *, by_class: bool = False) -> Evaluate:
    """Every metric of one run as a function of counts [b, n]; `by_class` adds `recall@0` and the like."""
    columns = predictions.probabilities.shape[1]
    if max(predictions.labels.max(initial=0), predictions.predicted.max(initial=0)) >= columns:
        raise HistobenchError(
            f"a label is outside the {columns} classes of the probabilities: metrics are undefined"
        )

    given = predictions.probabilities, predictions.labels
    how: dict[str, Any] = {"predicted": predictions.predicted, "by_class": by_class}
    return lambda counts: evaluate_resamples(*given, counts, **how)


def one_metric(predictions: Predictions, metric: str) -> Metric:
    """One metric of a run as a function of counts [b, n]; label metrics from the confusion matrix alone."""
    metric = known_metric(metric)
    if metric not in LABEL_METRICS:
        return lambda counts: all_metrics(predictions)(counts)[metric]
    c, n = predictions.n_columns, len(predictions)
    cells = summing_matrix(predictions.labels * c + predictions.predicted, np.arange(n), (c * c, n))

    def value(counts: Counts) -> Floats:
        tallied = (cells @ np.ascontiguousarray(counts.T, dtype=np.float64)).T
        return label_metrics_of(tallied.reshape(-1, c, c), [metric])[metric]

    return value
