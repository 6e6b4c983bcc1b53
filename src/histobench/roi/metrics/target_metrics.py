"""Metrics of targets that are not one class per image, as functions of how often each row counts.

Counts are whole numbers: 1 for every row gives the metric itself, and 0 leaves rows out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.classification import Score
from histobench.roi.predictions import TargetPredictions
from histobench.roi.task_catalogue import BACKGROUND

Floats = NDArray[np.float64]
Evaluate = Callable[[NDArray[np.int32]], Mapping[str, Floats]]


#: What a segmentation is shown with: the same network with random weights, mean colors, the grid itself.
REFERENCES = ("random", "color", "ceiling")


def target_metrics(predictions: TargetPredictions) -> dict[str, Score]:
    """Every metric of the predictions; one that is not defined says why."""
    found = evaluate_target(predictions)(np.ones((1, len(predictions)), dtype=np.int32))
    return {
        name: Score(float(values[0]))
        if np.isfinite(values[0])
        else Score(None, _UNDEFINED.get(predictions.kind, "undefined on the test set"))
        for name, values in found.items()
    }


def evaluate_target(predictions: TargetPredictions) -> Evaluate:
    """The metrics of the target's kind as a function of counts [b, n]; means over trainings."""
    each = [_EVALUATORS[one.kind](one) for one in trainings(predictions)]

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        found = [one(counts) for one in each]
        return {name: defined_mean(np.stack([values[name] for values in found])) for name in found[0]}

    return evaluate if len(each) > 1 else each[0]


def trainings(predictions: TargetPredictions) -> list[TargetPredictions]:
    """The predictions of each training: of masks there may be several, behind those of the references."""
    n, c = predictions.truth.shape
    first = (1 + len(REFERENCES)) * 2 * c
    if predictions.kind != "mask" or predictions.predicted.shape[1] == first:
        return [predictions]
    every = predictions.predicted.reshape(n, -1, 2 * c)
    places = [0, *range(1 + len(REFERENCES), every.shape[1])]
    beside = every[:, 1 : 1 + len(REFERENCES)].reshape(n, -1)
    return [replace(predictions, predicted=np.hstack([every[:, place], beside])) for place in places]


def defined_mean(values: Floats) -> Floats:
    """The mean over episodes or trainings [E, ...] of those where it is defined; NaN if it is in none."""
    defined = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(defined, values, 0.0).sum(axis=0) / defined.sum(axis=0))


_UNDEFINED = {
    "regression": "true or predicted values are the same for all of the test set",
    "survival": "the test set has no two patients whose order is known",
    "mask": "no test image has this in truth or prediction",
    "multilabel": "the test set has one value of the label only",
}


def per_target(predictions: TargetPredictions) -> dict[str, dict[str, Score]]:
    """The Pearson correlation of each of several numbers, by its name."""
    every = np.ones((1, len(predictions)), dtype=np.int32)
    found = {}
    for column, name in enumerate(predictions.columns):
        value = float(_one_regression(predictions, column)(every)["pearson"][0])
        undefined = _UNDEFINED["regression"]
        found[name] = {"pearson": Score(value) if np.isfinite(value) else Score(None, undefined)}
    return found


def _regression(predictions: TargetPredictions) -> Evaluate:
    """Of one number, or the mean of each metric over several; undefined where one of them is."""
    each = [_one_regression(predictions, column) for column in range(predictions.truth.shape[1])]

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        found = [one(counts) for one in each]
        return {name: np.mean([values[name] for values in found], axis=0) for name in found[0]}

    return evaluate


def _one_regression(predictions: TargetPredictions, column: int) -> Evaluate:
    truth, predicted = predictions.truth[:, column], predictions.predicted[:, column]
    # Moved to the middle first: sums of squares of large numbers would lose the small differences.
    middle = truth.mean()
    y, p = truth - middle, predicted - middle
    error = truth - predicted
    parts = np.stack([np.ones_like(y), y, p, y * y, p * p, y * p, error * error, np.abs(error)], axis=1)
    first, second = (np.unique(values, return_inverse=True)[1] for values in (truth, predicted))

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        n, sy, sp, yy, pp, yp, squared, absolute = (counts.astype(np.float64) @ parts).T
        with np.errstate(divide="ignore", invalid="ignore"):
            around = _positive(yy - sy * sy / n, yy)
            return {
                "r2": 1 - squared / around,
                "pearson": (yp - sy * sp / n) / np.sqrt(around * _positive(pp - sp * sp / n, pp)),
                "spearman": np.array([_rank_correlation(first, second, row) for row in counts.astype(float)]),
                "mae": absolute / n,
            }

    return evaluate


def _positive(variance: Floats, size: Floats) -> Floats:
    """Sums of squares around the mean; NaN where only rounding errors are left."""
    return np.where(variance > 1e-12 * size, variance, np.nan)


def _rank_correlation(first: NDArray[np.intp], second: NDArray[np.intp], counts: Floats) -> float:
    """Spearman's correlation of two columns, given by the places of their values, counted so often."""
    ranks = []
    for codes in (first, second):  # equal values share the middle of their ranks
        sizes = np.bincount(codes, weights=counts)
        ranks.append((np.cumsum(sizes) - (sizes - 1) / 2)[codes] - (counts.sum() + 1) / 2)
    spreads = [float(counts @ (rank * rank)) for rank in ranks]
    if min(spreads) <= 0:
        return float("nan")
    return float(counts @ (ranks[0] * ranks[1])) / float(np.sqrt(spreads[0] * spreads[1]))


def _survival(predictions: TargetPredictions) -> Evaluate:
    """Harrell's and Uno's C: pairs of an event and a patient who lived longer; equal risks are worth half."""
    time, event = predictions.truth[:, 0], predictions.truth[:, 1] > 0
    risk = predictions.predicted[:, 0]
    weights = {"harrell_c": np.ones(len(time)), "uno_c": predictions.weights}

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        often = counts.astype(np.float64)
        sums = {name: np.zeros((2, len(counts))) for name in weights}
        events = np.flatnonzero(event)
        for rows in np.array_split(events, max(1, len(events) * len(time) // _CELLS + 1)):
            later = time > time[rows, None]
            # Of two with the same time the one who was censored lived longer.
            comparable = later | ((time == time[rows, None]) & ~event)
            apart = risk[rows, None] - risk
            ordered = comparable * np.where(np.abs(apart) <= _SAME_RISK, 0.5, apart > 0)
            right, all_pairs = often @ ordered.T, often @ comparable.T.astype(np.float64)
            for name, weight in weights.items():
                worth = often[:, rows] * (np.nan if weight is None else weight[rows])
                sums[name] += (worth * right).sum(axis=1), (worth * all_pairs).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: right / pairs for name, (right, pairs) in sums.items()}

    return evaluate


def _multilabel(predictions: TargetPredictions) -> Evaluate:
    """Areas of every label (as `auroc@0`), their means over the labels that have both values, and of all."""
    truth, said = predictions.truth > 0, predictions.predicted
    labels = [_Ranked(truth[:, k], said[:, k]) for k in range(truth.shape[1])]
    every = _Ranked(truth.ravel(), said.ravel())

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        often = counts.astype(np.float64)
        each = [label.areas(often) for label in labels]
        micro = every.areas(often.repeat(len(labels), axis=1))
        found: dict[str, Floats] = {}
        for place, name in enumerate(("auroc", "ap")):
            values = np.stack([areas[place] for areas in each], axis=1)
            known = np.isfinite(values)
            with np.errstate(divide="ignore", invalid="ignore"):
                found[f"macro_{name}"] = np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)
            found[f"micro_{name}"] = micro[place]
            per_label = "auroc" if name == "auroc" else "auprc"
            found |= {f"{per_label}@{k}": values[:, k] for k in range(len(labels))}
        return found

    return evaluate


def _ordinal(predictions: TargetPredictions) -> Evaluate:
    levels = np.array([float(name) for name in predictions.predicted_columns])
    c = len(levels)
    truth, said = np.searchsorted(levels, predictions.truth[:, 0]), predictions.predicted.argmax(axis=1)
    apart = np.abs(np.arange(c)[:, None] - np.arange(c)).astype(np.float64)
    cells = np.eye(c * c)[truth * c + said]

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        confusion = (counts.astype(np.float64) @ cells).reshape(-1, c, c)
        total = confusion.sum(axis=(1, 2))
        by_chance = np.einsum("bi,bj->bij", confusion.sum(axis=2), confusion.sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = (by_chance * apart**2).sum(axis=(1, 2)) / total
            expected = np.where(expected > 0, expected, np.nan)
            return {
                "quadratic_kappa": 1 - (confusion * apart**2).sum(axis=(1, 2)) / expected,
                "mae": (confusion * apart).sum(axis=(1, 2)) / total,
            }

    return evaluate


def image_dice(both: Floats, predicted: Floats, true: Floats, *, iou: bool = False) -> Floats:
    total = predicted + true
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, both / (total - both) if iou else 2 * both / total, np.nan)


def mean_of_images(values: Floats) -> Floats:
    return defined_mean(values.T)


def foreground(classes: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([name.lower() != BACKGROUND for name in classes])


def _mask(predictions: TargetPredictions) -> Evaluate:
    true = predictions.truth
    n, c = true.shape
    every = predictions.predicted.reshape(n, -1, 2, c)  # of the encoder and each reference: both, predicted
    fore = foreground(predictions.columns)
    both, said = every[:, 0, 0], every[:, 0, 1]
    dice = image_dice(both, said, true)
    columns = {
        "dice": mean_of_images(dice[:, fore]),
        "iou": mean_of_images(image_dice(both, said, true, iou=True)[:, fore]),
        "dice_with_background": mean_of_images(dice),
    }
    for place, name in enumerate(REFERENCES, start=1):
        values = image_dice(every[:, place, 0], every[:, place, 1], true)
        columns[f"{name}_dice"] = mean_of_images(values[:, fore])
    columns |= {f"dice@{k}": dice[:, k] for k in range(c)}
    values = np.stack(list(columns.values()), axis=1)
    known = np.isfinite(values)

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        often = counts.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = (often @ np.where(known, values, 0.0)) / (often @ known)
        pooled = [often @ part for part in (both, said, true)]
        found = dict(zip(columns, means.T, strict=True))
        found["pooled_dice"] = mean_of_images(image_dice(*pooled)[:, fore])
        found["miou"] = mean_of_images(image_dice(*pooled, iou=True))
        return found

    return evaluate


class _Ranked:
    """Predictions of one label in their order, highest first, with the places of equal ones."""

    def __init__(self, positive: NDArray[np.bool_], said: Floats) -> None:
        self.order = np.argsort(-said, kind="stable")
        self.positive = positive[self.order].astype(np.float64)
        ordered = said[self.order]
        self.ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))

    def areas(self, often: Floats) -> tuple[Floats, Floats]:
        """Area under the ROC curve and average precision [b] for counts [b, n]; NaN without both values."""
        counts = often[:, self.order]
        hits = np.cumsum(counts * self.positive, axis=1)[:, self.ends]
        taken = np.cumsum(counts, axis=1)[:, self.ends]
        hit, false = np.diff(hits, prepend=0.0), np.diff(taken - hits, prepend=0.0)
        positives, negatives = hits[:, -1], taken[:, -1] - hits[:, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            auroc = (false * (hits - hit / 2)).sum(axis=1) / (positives * negatives)
            precision = np.where(taken > 0, hits / taken, 0.0)
            average = (hit * precision).sum(axis=1) / positives
        undefined = (positives == 0) | (negatives == 0)
        return np.where(undefined, np.nan, auroc), np.where(undefined, np.nan, average)


def uno_weights(train: Floats, test: Floats) -> Floats:
    """The weight of every test patient [n] in Uno's C: 1 / G(time)^2 of those with an event, else 0.

    G is the share of training patients that are not censored up to a time (Kaplan and Meier, reversed).
    `train` and `test` are [n, 2]: time and event. Events later than all that is known of G have no weight.
    """
    times = np.unique(train[:, 0])
    event = train[:, 1] > 0
    at = np.searchsorted(times, train[:, 0])
    died, censored = (np.bincount(at[who], minlength=len(times)) for who in (event, ~event))
    # Who dies at a time cannot be censored then.
    at_risk = np.cumsum((died + censored)[::-1])[::-1] - died
    share = np.cumprod(1 - censored / np.maximum(at_risk, 1))
    place = np.searchsorted(times, test[:, 0], side="right") - 1
    known = np.where(place >= 0, share[place], 1.0)
    counted = (test[:, 1] > 0) & (known > 0) & (test[:, 0] <= times[-1])
    return np.where(counted, 1 / np.where(counted, known, 1.0) ** 2, 0.0)


@dataclass(frozen=True)
class SurvivalCurve:
    """Kaplan and Meier's estimate: the share that is alive after each time with an event, with a 95% band."""

    times: Floats  # [k]
    alive: Floats  # [k]
    low: Floats  # [k]
    high: Floats  # [k]

    @classmethod
    def of(cls, time: Floats, event: NDArray[np.bool_]) -> SurvivalCurve:
        """The curve of patients; the band is pointwise (Greenwood's variance of the log-log share)."""
        times = np.unique(time[event])
        at_risk = (time >= times[:, None]).sum(axis=1)
        died = ((time == times[:, None]) & event).sum(axis=1)
        alive = np.cumprod(1 - died / at_risk)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.sqrt(np.cumsum(died / (at_risk * (at_risk - died)))) / np.abs(np.log(alive))
            low, high = (alive ** np.exp(sign * 1.959964 * spread) for sign in (1, -1))
        unknown = ~np.isfinite(spread)
        return cls(times, alive, np.where(unknown, 0.0, low), np.where(unknown, alive, high))


def log_rank_p(time: Floats, event: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """The p-value of the log-rank test that both groups have the same survival; NaN without one."""
    times = np.unique(time[event])
    here = time >= times[:, None]
    now = (time == times[:, None]) & event
    at_risk, at_risk_second = here.sum(axis=1), (here & second).sum(axis=1)
    died, died_second = now.sum(axis=1), (now & second).sum(axis=1)
    share = at_risk_second / at_risk
    variance = (died * share * (1 - share) * (at_risk - died) / np.maximum(at_risk - 1, 1)).sum()
    if not variance > 0:
        return float("nan")
    apart = died_second.sum() - (died * share).sum()
    return float(math.erfc(math.sqrt(apart * apart / variance / 2)))


#: Risks that are nearer than this are the same, and pairs of patients that are looked at together.
_SAME_RISK, _CELLS = 1e-8, 1 << 24
_EVALUATORS: dict[str, Callable[[TargetPredictions], Evaluate]] = {
    "regression": _regression,
    "survival": _survival,
    "multilabel": _multilabel,
    "ordinal": _ordinal,
    "mask": _mask,
}
