"""The default interval of every metric: which procedure each gets, and why some get none.

Over groups (patients, slides) every metric goes by the jackknife on its own scale (`statistics.logit_t`).
Over single images accuracy and recalls are proportions: Wilson's interval, and MOVER over the classes for
their mean. What remains goes by the jackknife over images.

A class with hardly a mistake shows no spread, and yet its recall is only known within its own interval. So
a mean of recalls reaches at least as far as it moves when the recall of one class moves to the end of its own
interval, and to every metric of the confusion matrix the moves of classes that show no spread are added in
squares (MOVER).
Differences of encoders have the same floor (`pair_floor`), from the images of each class on which exactly one
of the two is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.metric_function import all_metrics
from histobench.roi.comparison.sampling_units import (
    FEWEST_GROUPS,
    FEWEST_GROUPS_OF_CLASS,
    FEWEST_MISTAKES,
    FEWEST_POSITIVES,
    SamplingUnits,
    scored,
)
from histobench.roi.metrics.batched import evaluate_left_out
from histobench.roi.metrics.formulas import SMALLEST_PROBABILITY, label_metrics_of
from histobench.roi.metrics.metric_catalogue import metric_of
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import Interval, mean_of_proportions, most_unseen, wilson_bounds
from histobench.statistics.jackknife import (
    FISHER,
    HALVED_LOGIT,
    LOG,
    LOGIT,
    UNEXPLAINED,
    LeaveOneOut,
    Scale,
    effective_influences,
    jackknife_bounds,
    pair_errors,
    student_reach,
    t_quantile,
)
from histobench.statistics.resampling import jackknife_of_all, sampling_design

Floats = NDArray[np.float64]

METHOD = "logit-t"
_AREAS = ("auroc", "auprc")
#: Values of two encoders are not taken to be closer related than this: units know a correlation only roughly.
HIGHEST_CORRELATION = 0.95
_SCALES = {"logit": LOGIT, "fisher": FISHER, "log": LOG, "unexplained": UNEXPLAINED}
NO_CALIBRATION_INTERVAL = (
    "no interval: a calibration error is too high by an amount that depends on the number of images, and no "
    "method known to us holds its level for it"
)


@dataclass(frozen=True)
class RecallBounds:
    """The interval of the recall of each class [m, c], and which classes show no spread of it."""

    low: Floats
    high: Floats
    few: NDArray[np.bool_]  # mistakes, or right predictions, in fewer than `FEWEST_GROUPS_OF_CLASS` units


def run_metric_intervals(predictions: Predictions) -> tuple[dict[str, float], dict[str, Interval]]:
    """Value and interval of every metric of one run, those of its classes as `recall@0` and the like."""
    known = scored(predictions)
    units = SamplingUnits.of(known)
    evaluate = all_metrics(known, by_class=True)
    observed = evaluate(np.ones((1, len(known)), dtype=np.int32))
    if units.n_units < 2:
        left_out = dict.fromkeys(observed, np.full(1, np.nan))
    elif units.group_of is None:
        left_out = evaluate_left_out(
            known.probabilities, known.labels, predicted=known.predicted, by_class=True
        )
    else:
        left_out = jackknife_of_all(evaluate, sampling_design(len(known), clusters=units.group_of))
    confusion = confusion_of(known, units.n_columns)[None]
    recalls = recall_bounds([known], units)
    intervals = {
        name: metric_intervals(
            name, units, values, left_out[name][:, None], confusions=confusion, recalls=recalls
        )[0]
        for name, values in observed.items()
    }
    return {name: float(values[0]) for name, values in observed.items()}, intervals


def confusion_of(predictions: Predictions, c: int) -> NDArray[np.int64]:
    """How often each class (row) was taken for each (column)."""
    cells = predictions.labels * c + predictions.predicted
    return np.bincount(cells, minlength=c * c).reshape(c, c)


def metric_intervals(
    metric: str,
    units: SamplingUnits,
    values: Floats,
    left_out: Floats,
    *,
    confusions: NDArray[np.int64],
    recalls: RecallBounds | None = None,
    level: float = 0.95,
) -> list[Interval]:
    """Intervals of one metric of m runs: values [m], with each unit left out [u, m], confusions [m, c, c].

    `recalls` are the bounds of the recall of every class (`recall_bounds`), which metrics of the confusion
    matrix do not contradict.
    """
    name, label = _parts(metric, units)
    facts = metric_of(name)
    reason = why_no_interval(metric, units)
    if reason is not None:
        return [_none(level, reason) for _ in values]
    if units.group_of is None and (facts.proportion or label is not None):
        shares = _proportions(name, label, confusions, level)
        if shares is not None:
            undefined = _none(level, "undefined on the test set")
            return [
                interval if np.isfinite(value) else undefined
                for interval, value in zip(shares, values, strict=True)
            ]
    scale = scale_of(name, units.n_columns)
    size, worth = _sizes(name, label, units)
    freedom = units.freedom_of_all(by_class=True) if facts.kind in _AREAS else units.freedom
    table = LeaveOneOut.unstratified((name,) * len(values), values, left_out, freedom=freedom)
    grouped = units.group_of is not None
    # Over single images the mistakes of a label metric are too alike for moments of influences to tell more.
    adapt = grouped or (facts.kind != "labels" and label is None) or facts.kind in _AREAS
    low, high = jackknife_bounds(
        table,
        scale,
        size,
        effective=worth,
        level=level,
        adapt=adapt,
        long_tailed=grouped and facts.kind == "loss",
        biased=grouped and facts.kind == "auprc",
        few_carry=grouped and facts.kind in _AREAS,
    )
    if recalls is not None and facts.kind == "labels" and label is None and facts.proportion != "share":
        low, high = _moved_by_recalls(name, values, confusions, recalls, low, high)
    if name == "log_loss":
        high = np.minimum(high, -np.log(SMALLEST_PROBABILITY))
    found = [
        Interval(float(a), float(b), level, METHOD, len(left_out))
        if np.isfinite([a, b]).all()
        else _none(level, _undefined(label, units, value))
        for a, b, value in zip(low, high, values, strict=True)
    ]
    if grouped and facts.kind == "loss":
        mistakes = confusions.sum(axis=(1, 2)) - np.trace(confusions, axis1=1, axis2=2)
        needed = f"(over groups, the interval of a loss needs {FEWEST_MISTAKES})"
        return [
            interval if count >= FEWEST_MISTAKES else _none(level, f"too few mistakes: {count} {needed}")
            for interval, count in zip(found, mistakes, strict=True)
        ]
    return found


def _proportions(
    name: str, label: int | None, confusions: NDArray[np.int64], level: float
) -> list[Interval] | None:
    """Intervals of what is a proportion, or a mean of them, by the confusions [m, c, c]; None otherwise."""
    hits, support = np.diagonal(confusions, axis1=1, axis2=2), confusions.sum(axis=2)
    predicted = confusions.sum(axis=1)
    if label is not None:
        among = {"recall": support, "precision": predicted}.get(name)
        if among is None or (among[:, label] == 0).any():
            return None
        low, high = wilson_bounds(hits[:, label], among[:, label], level=level)
        method, sizes = "wilson", among[:, label]
    elif metric_of(name).proportion == "share":
        low, high = wilson_bounds(hits.sum(axis=1), support.sum(axis=1), level=level)
        method, sizes = "wilson", support.sum(axis=1)
    else:
        # Runs on the same images: every class has the same support in all of them.
        present = support[0] > 0
        counted = present | (predicted > 0) & (name != "balanced_accuracy")
        low, high = mean_of_proportions(
            hits[:, present],
            support[:, present],
            level=level,
            weights=1 / counted.sum(axis=1, keepdims=True),
        )
        method, sizes = "mover-wilson", support.sum(axis=1)
    return [
        Interval(float(a), float(b), level, method, int(size))
        for a, b, size in zip(low, high, sizes, strict=True)
    ]


def _parts(metric: str, units: SamplingUnits) -> tuple[str, int | None]:
    name, _, text = metric.partition("@")
    label = int(text) if text else None
    if units.n_columns == 2 and label is None:  # all areas are that of class 1
        name = {"auroc": "auroc", "auprc": "macro_auprc"}.get(metric_of(name).kind, name)
    return name, label


def why_no_interval(metric: str, units: SamplingUnits) -> str | None:
    """Why these units allow no interval of a metric, and no test of its differences; None where they do."""
    name, label = _parts(metric, units)
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


def recall_bounds(runs: Sequence[Predictions], units: SamplingUnits, *, level: float = 0.95) -> RecallBounds:
    """The bounds of the recall of each class of runs on the same images; NaN for absent classes."""
    c, m = units.n_columns, len(runs)
    low, high = np.full((2, m, c), np.nan)
    few = np.zeros((m, c), dtype=bool)
    n_units = units.n_units
    cells = units.unit_of * c + units.labels
    sizes = np.bincount(cells, minlength=n_units * c).reshape(n_units, c)
    right = np.stack([run.predicted == run.labels for run in runs])
    hits = np.stack([np.bincount(cells, row, minlength=n_units * c) for row in right], axis=1)
    hits = hits.reshape(n_units, c, m)
    for k in np.flatnonzero(units.class_sizes):
        own, total = hits[:, k], float(units.class_sizes[k])
        seen = np.minimum((own > 0).sum(axis=0), (own < sizes[:, [k]]).sum(axis=0))
        few[:, k] = seen < FEWEST_GROUPS_OF_CLASS
        if units.group_of is None:
            low[:, k], high[:, k] = wilson_bounds(own.sum(axis=0), total, level=level)
            continue
        members = sizes[:, k] < total
        with np.errstate(divide="ignore", invalid="ignore"):
            left_out = (own.sum(axis=0) - own) / (total - sizes[:, [k]])
        left_out = np.where(members[:, None], left_out, np.nan)
        values = own.sum(axis=0) / total
        table = LeaveOneOut.unstratified(("recall",) * m, values, left_out, freedom=units.freedom)
        low[:, k], high[:, k] = jackknife_bounds(
            table, LOGIT, total, effective=units.worth(total, label=int(k)), level=level
        )
    return RecallBounds(low, high, few)


def _moved_by_recalls(
    name: str,
    values: Floats,
    confusions: NDArray[np.int64],
    recalls: RecallBounds,
    low: Floats,
    high: Floats,
) -> tuple[Floats, Floats]:
    """The bounds [m], widened by what the recalls of the classes allow."""
    down, up = (values - low) ** 2, (high - values) ** 2
    lowest, highest = low, high
    for k in range(confusions.shape[1]):
        ends = [_with_recall(name, confusions, k, bound[:, k]) for bound in (recalls.low, recalls.high)]
        if metric_of(name).proportion:
            lowest, highest = np.fmin(lowest, np.fmin(*ends)), np.fmax(highest, np.fmax(*ends))
        for end in ends:
            moved = np.where(recalls.few[:, k], np.nan_to_num(end - values), 0.0)
            down, up = down + np.minimum(moved, 0.0) ** 2, up + np.maximum(moved, 0.0) ** 2
    least = -1.0 if metric_of(name).scale == "fisher" else 0.0
    wide = np.maximum(values - np.sqrt(down), least), np.minimum(values + np.sqrt(up), 1.0)
    # Where there is no interval, there is none: NaN stays.
    return np.where(np.isfinite(low), np.fmin(wide[0], lowest), low), np.where(
        np.isfinite(high), np.fmax(wide[1], highest), high
    )


def _with_recall(name: str, confusions: NDArray[np.int64], k: int, recall: Floats) -> Floats:
    """The metric [m] if class k had this recall [m] and its mistakes were divided as they are."""
    changed = confusions.astype(np.float64)
    row = changed[:, k].copy()
    size = row.sum(axis=1)
    row[:, k] = 0.0
    mistakes = row.sum(axis=1, keepdims=True)
    others = (confusions.sum(axis=(0, 2)) > 0) & (np.arange(len(row.T)) != k)
    evenly = others / max(others.sum(), 1)
    shares = np.where(mistakes > 0, row / np.maximum(mistakes, 1), evenly)
    changed[:, k] = (size * (1 - recall))[:, None] * shares
    changed[:, k, k] = size * recall
    return np.asarray(label_metrics_of(changed, [name])[name])


def pair_floor(
    metric: str,
    found: LeaveOneOut,
    units: SamplingUnits,
    intervals: Mapping[str, Interval],
    runs: Mapping[str, Predictions] | None = None,
    *,
    level: float = 0.95,
) -> Floats:
    """The least standard errors [m, m] of the lower bounds of differences (see `jackknife.pair_errors`).

    Metrics of the confusion matrix (with `runs`): what may be unseen of each class is added to what the units
    show. A class with no image on which exactly one encoder is right may have as many of them as Clopper and
    Pearson's bound allows, and each such image that was seen leaves less unseen.

    Areas: degrees of freedom and skewness follow the units' influences on the difference, as for single
    values. Where fewer than five units carry it, the encoders' own intervals are combined by the correlation
    of their values (MOVER; Zou 2007). NaN where one of the two has no interval.
    """
    facts = metric_of(_parts(metric, units)[0])
    m, reach = len(found.names), t_quantile(found.freedom, level)
    known = np.array([intervals[name].low is not None for name in found.names])
    covariance = found.covariance
    spread = np.diag(covariance)
    floor = np.zeros((m, m))
    if facts.kind == "labels" and runs is not None:
        unseen = _unseen(metric, found, units, [runs[name] for name in found.names], level)
        errors = pair_errors(found)[1] if units.group_of is None else _adapted(found, reach, level)
        variance = np.maximum(spread[:, None] + spread[None, :] - 2 * covariance, 0.0)
        floor = np.sqrt(errors**2 * (variance > 0) + unseen / reach**2)
    elif facts.kind in _AREAS:
        floor = _area_floor(found, intervals, reach, level)
    return np.where(known[:, None] & known[None, :], floor, np.nan)


def _adapted(found: LeaveOneOut, reach: float, level: float) -> Floats:
    """Standard errors of lower bounds [m, m], widened as the units' influences on each difference ask for."""
    influences = found.influences
    errors = np.zeros((len(found.names), len(found.names)))
    for i in range(len(errors)):
        apart = influences[:, [i]] - influences
        squares = (apart**2).sum(axis=0)
        down, _ = student_reach(apart, squares, found.freedom, level)
        errors[i] = np.sqrt(squares) * np.maximum(down / reach, 1.0)
    return errors


def _area_floor(found: LeaveOneOut, intervals: Mapping[str, Interval], reach: float, level: float) -> Floats:
    m = len(found.names)
    influences, covariance = found.influences, found.covariance
    spread = np.diag(covariance)
    ends = [(intervals[name].low, intervals[name].high) for name in found.names]
    low, high = np.array(ends, dtype=np.float64).T
    below, above = found.values - low, high - found.values
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(covariance / np.sqrt(spread[:, None] * spread[None, :]))
    correlation = np.clip(correlation, 0.0, HIGHEST_CORRELATION)
    squares = below[:, None] ** 2 + above[None, :] ** 2 - 2 * correlation * below[:, None] * above[None, :]
    combined = np.sqrt(np.maximum(squares, 0.0)) / reach
    floor = _adapted(found, reach, level)
    for i in range(m):
        apart = influences[:, [i]] - influences
        carried = effective_influences(apart) < FEWEST_GROUPS
        floor[i] = np.where(carried, np.fmax(combined[i], np.sqrt((apart**2).sum(axis=0))), floor[i])
    return floor


def _unseen(
    metric: str, found: LeaveOneOut, units: SamplingUnits, runs: Sequence[Predictions], level: float
) -> Floats:
    """How far differences [m, m] may move by what the classes did not show, squared."""
    confusions = np.stack([confusion_of(run, units.n_columns) for run in runs])
    right = np.stack([run.predicted == run.labels for run in runs]).astype(np.float64)
    if metric_of(metric).proportion == "share":  # all images are alike
        bound = most_unseen(units.worth(float(len(units.labels))), level=level)
        only_first = right @ (1 - right).T
        return np.asarray((bound / (1 + only_first + only_first.T) ** 2) ** 2)
    total = np.zeros((len(runs), len(runs)))
    for k in np.flatnonzero(units.class_sizes):
        own = right[:, units.labels == k]
        only_first = own @ (1 - own).T
        bound = most_unseen(units.worth(float(units.class_sizes[k]), label=int(k)), level=level)
        recall = np.maximum(own.mean(axis=1) - bound, 0.0)
        moved = np.abs(np.nan_to_num(_with_recall(metric, confusions, int(k), recall) - found.values))
        fewer = 1 / (1 + only_first + only_first.T) ** 2
        total += (np.maximum(moved[:, None], moved[None, :]) * fewer) ** 2
    return total


def range_of(metric: str, n_classes: int) -> tuple[float, float]:
    """The least and the largest value of the metric."""
    scale = metric_of(metric).scale
    if metric_of(metric).kind == "target" and scale in ("log", "unexplained"):
        return (0.0, np.inf) if scale == "log" else (-np.inf, 1.0)
    if scale == "log":
        return 0.0, float(-np.log(SMALLEST_PROBABILITY))
    if scale == "sum of squares":
        return 0.0, 2.0 if n_classes > 2 else 1.0
    return (-1.0 if scale == "fisher" else 0.0), 1.0


def _undefined(label: int | None, units: SamplingUnits, value: float) -> str:
    if not np.isfinite(value):
        return "undefined on the test set"
    present = np.flatnonzero(units.class_sizes > 0)
    rarest = int(present[units.units_of_class[present].argmin()]) if label is None else label
    if units.units_of_class[rarest] == 1:
        return f"class {units.name(rarest)} occurs in one of the {units.word} only"
    return f"undefined when one of the {units.word} is left out"


def _none(level: float, reason: str) -> Interval:
    return Interval(None, None, level, METHOD, 0, reason)


def scale_of(name: str, n_classes: int) -> Scale:
    """The scale on which a metric is closest to normal."""
    scale = metric_of(name).scale
    if scale == "sum of squares":
        return HALVED_LOGIT if n_classes > 2 else LOGIT
    return _SCALES[scale]


def _sizes(name: str, label: int | None, units: SamplingUnits) -> tuple[float, float]:
    """Images behind a value, and how many independent ones they are worth where nothing varies."""
    n = float(len(units.labels))
    if label is None and metric_of(name).by_size:
        return n, units.worth(n)
    sizes = units.class_sizes[units.class_sizes > 0].astype(np.float64)
    if label is not None:
        own = float(max(units.class_sizes[label], 1))
        if name not in ("auroc", "auprc"):
            return n if name == "f1_score" else own, units.worth(own, label=label)
        sizes = np.array([own, max(n - own, 1.0)])
    # As many images as give a mean over classes the same variance if every class had as many.
    return n, units.worth(len(sizes) ** 2 / float((1 / sizes).sum()))
