"""Tallies with one test image left out at a time, in closed form: no resample is ever built.

What an image adds to each count is looked up in sums over the sorted scores, so n images cost about as much
as one sort of each score column.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.formulas import CALIBRATION_BINS, Floats, Ints, PerImage, Tally

#: Scores that are ranked at a time.
_NUMBERS_AT_ONCE = 2**20


def tallies_left_out(probabilities: Floats, labels: Ints, predicted: Ints, *, memory: int) -> Iterator[Tally]:
    """Tallies of the n test sets [n, c] without image 0, 1, ..., as many at a time as fit the memory."""
    n, c = probabilities.shape
    image = np.arange(n)
    uncovered = np.isnan(probabilities).any(0)
    p = np.nan_to_num(probabilities, nan=-1.0)
    confusion = np.bincount(labels * c + predicted, minlength=c * c).reshape(c, c).astype(np.float64)
    beaten_as_own, beating_it = _placements(p, labels)
    concordance = np.zeros((c, c))
    np.add.at(concordance, labels, beaten_as_own)
    precision = np.stack([_average_precision(p[:, a], labels == a) for a in range(c)], axis=1)
    precision[:, uncovered] = np.nan
    micro_auroc, micro_auprc = _micro(p, labels) if c > 2 else np.full((2, n), np.nan)
    each = PerImage.of(p, labels, predicted)
    losses, squares = each.log_loss, each.squared_error
    if uncovered.any():
        losses, squares, micro_auroc, micro_auprc = np.full((4, n), np.nan)
    in_bin = np.stack([np.ones(n), each.confidence, each.correct], axis=1)
    calibration = np.zeros((CALIBRATION_BINS, 3))
    np.add.at(calibration, each.bin, in_bin)

    step = max(1, memory // (8 * (4 * c * c + 3 * CALIBRATION_BINS)))
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        here, row = image[part], np.arange(part.stop - part.start)
        truth = labels[part]
        confusions = np.repeat(confusion[None], len(here), axis=0)
        confusions[row, truth, predicted[part]] -= 1
        pairs = np.repeat(concordance[None], len(here), axis=0)
        pairs[row, truth] -= beaten_as_own[part]
        pairs[row, :, truth] -= beating_it[part]
        pairs[:, uncovered] = np.nan
        calibrations = np.repeat(calibration[None], len(here), axis=0)
        calibrations[row, each.bin[part]] -= in_bin[part]
        with np.errstate(divide="ignore", invalid="ignore"):
            yield Tally(
                confusion=confusions,
                concordance=pairs,
                average_precision=precision[part],
                micro_auroc=micro_auroc[part],
                micro_auprc=micro_auprc[part],
                log_loss=(losses.sum() - losses[part]) / (n - 1),
                squared_error=(squares.sum() - squares[part]) / (n - 1),
                calibration=calibrations,
            )


def _placements(p: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """How each image fares against the images of every class, ties one half.

    [n, c] images of class b that lie below image i in the score column of i's own class, and
    [n, c] images of class a that lie above image i in score column a (0 for its own class).
    """
    n, c = p.shape
    beaten, beating = np.zeros((n, c)), np.zeros((n, c))
    members = [np.flatnonzero(labels == a) for a in range(c)]
    for a in range(c):
        ordered = [np.sort(p[rows, a]) for rows in members]
        for b in range(c):
            if b != a:
                beaten[members[a], b] = _below(ordered[b], p[members[a], a])
                beating[members[b], a] = len(ordered[a]) - _below(ordered[a], p[members[b], a])
    return beaten, beating


def auroc_left_out(p: Floats, labels: Ints, group_of: Ints | None = None) -> tuple[float, Floats]:
    """The (macro one-vs-rest) AUROC, and without each image [n], or without each group [groups].

    NaN where leaving out leaves a class without images; with two classes it is the AUROC of class 1.
    """
    n, c = p.shape
    unit = np.arange(n) if group_of is None else group_of
    n_units = int(unit.max(initial=-1)) + 1
    sizes = np.bincount(labels, minlength=c).astype(np.float64)
    left = sizes - np.bincount(unit * c + labels, minlength=n_units * c).reshape(n_units, c)
    shown = np.arange(c)[1:] if c == 2 else np.arange(c)
    value, values = 0.0, np.zeros(n_units)
    step = max(1, _NUMBERS_AT_ONCE // max(n, 1))
    for classes in (shown[start : start + step] for start in range(0, len(shown), step)):
        positive = labels[:, None] == classes
        taken = _pairs_of(p[:, classes], positive)
        concordant = np.where(positive, taken, 0.0).sum(axis=0)
        if group_of is not None:  # pairs within a group would be taken off twice
            taken -= np.where(positive, _pairs_within(p[:, classes], positive, group_of), 0.0)
            taken = _sums_of_groups(taken, group_of, n_units)
        others = left.sum(axis=1, keepdims=True) - left[:, classes]
        with np.errstate(divide="ignore", invalid="ignore"):
            value += float((concordant / (sizes * (n - sizes))[classes]).sum())
            values += ((concordant - taken) / (left[:, classes] * others)).sum(axis=1)
    return value / len(shown), values / len(shown)


def _pairs_of(scores: Floats, positive: NDArray[np.bool_]) -> Floats:
    """Of each image [n, c] the pairs of a positive and another that it is part of and that are in order."""
    below = twice_outranked(scores, positive) / 2
    return np.where(positive, below, positive.sum(axis=0) - below)


def _pairs_within(scores: Floats, positive: NDArray[np.bool_], group_of: Ints) -> Floats:
    """Of each positive [n, c] the pairs with others of its group that are ranked rightly."""
    order = np.argsort(scores, axis=0)
    places = np.empty_like(scores)
    np.put_along_axis(places, order, tied_places(np.take_along_axis(scores, order, axis=0))[0], axis=0)
    # Groups one after the other in one ranking: the others in the groups before are taken off again.
    below = twice_outranked(places + (group_of * (len(scores) + 1.0))[:, None], positive) / 2
    others = _sums_of_groups((~positive).astype(np.float64), group_of, int(group_of.max(initial=-1)) + 1)
    return np.asarray(below - (np.cumsum(others, axis=0) - others)[group_of])


def _sums_of_groups(values: Floats, group_of: Ints, n_groups: int) -> Floats:
    return np.stack([np.bincount(group_of, column, minlength=n_groups) for column in values.T], axis=1)


def _below(ordered: Floats, scores: Floats) -> Floats:
    """How many of `ordered` lie below each score; equal ones count half."""
    strictly, weakly = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return np.asarray((strictly + weakly) / 2, dtype=np.float64)


def _average_precision(scores: Floats, positive: NDArray[np.bool_]) -> Floats:
    """The average precision [n] without each image; NaN where no positive is left."""
    at, taken, other = _thresholds(scores, positive)
    above, others_above = np.cumsum(at), np.cumsum(other)
    everything = above + others_above
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.concatenate([[0.0], np.cumsum(at * above / everything)])
        # Precision at thresholds at or below the one that was left out: one positive, or one other, fewer.
        fewer = np.where(everything > 1, (above - 1) / (everything - 1), 0.0)
        without_positive = np.concatenate([[0.0], np.cumsum(at * fewer)])
        without_other = np.concatenate([[0.0], np.cumsum(at * above / np.maximum(everything - 1, 1))])
        total = at.sum()
        area = np.empty(len(scores))
        t = taken[positive]
        area[positive] = (
            whole[t] + (without_positive[-1] - without_positive[t]) - fewer[t]
        ) / (total - 1)  # fmt: skip
        t = taken[~positive]
        area[~positive] = (whole[t] + (without_other[-1] - without_other[t])) / total
    return area


def _thresholds(scores: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Ints, Floats]:
    """Thresholds are the distinct scores of positives, from the highest on.

    Positives at each; the first threshold that every score reaches; and how many others reach each threshold
    and not the one before.
    """
    negated, inverse = np.unique(-scores[positive], return_inverse=True)
    at = np.bincount(inverse, minlength=len(negated)).astype(np.float64)
    taken = np.searchsorted(negated, -scores, side="left")
    reached = taken[~positive & (taken < len(negated))]
    return at, taken, np.bincount(reached, minlength=len(negated)).astype(np.float64)


def _micro(p: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """AUROC and AUPRC [n] of all score columns in one ranking, without each image's c entries."""
    n, c = p.shape
    own = labels[:, None] == np.arange(c)
    mine = p[own]
    rest = p[~own].reshape(n, c - 1)
    positives, others = np.sort(mine), np.sort(rest.ravel())
    won = _below(others, mine)
    lost = (n - _below(positives, rest.ravel()).reshape(n, c - 1)).sum(axis=1)
    among_itself = ((mine[:, None] > rest) + 0.5 * (mine[:, None] == rest)).sum(axis=1)
    pairs = won.sum() - won - lost + among_itself
    with np.errstate(divide="ignore", invalid="ignore"):
        auroc = pairs / ((n - 1.0) ** 2 * (c - 1))

    at, taken, other = _thresholds(p.ravel(), own.ravel())
    above, everything = np.cumsum(at), np.cumsum(at) + np.cumsum(other)
    taken = taken.reshape(n, c)
    order = np.argsort(taken, axis=1, kind="stable")
    edges = np.concatenate(
        [np.zeros((n, 1), dtype=np.int64), np.take_along_axis(taken, order, axis=1),
         np.full((n, 1), len(at))], axis=1
    )  # fmt: skip
    own_gone = np.concatenate(
        [np.zeros((n, 1), dtype=bool), np.cumsum(np.take_along_axis(own, order, axis=1), axis=1) > 0], axis=1
    )
    area = np.zeros(n)
    own_place = taken[own]
    with np.errstate(divide="ignore", invalid="ignore"):
        for gone in range(c + 1):  # how many of the image's entries lie at or above a threshold
            for without_own in (False, True):
                rows = own_gone[:, gone] == without_own
                if not rows.any():
                    continue
                left = everything - gone
                precision = np.where(left > 0, (above - without_own) / left, 0.0)
                sums = np.concatenate([[0.0], np.cumsum(at * precision)])
                begin, end = edges[rows, gone], edges[rows, gone + 1]
                area[rows] += sums[end] - sums[begin]
                if without_own:  # one positive fewer stands at the image's own threshold
                    place = own_place[rows]
                    here = (begin <= place) & (place < end)
                    area[rows] -= np.where(here, precision[np.minimum(place, len(at) - 1)], 0.0)
        auprc = area / (n - 1)
    return auroc, auprc


def twice_outranked(values: Floats, is_positive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each value [n, c] twice the number of the other side below it; equal ones count half."""
    order = np.argsort(values, axis=0)
    begins, ends = tied_places(np.take_along_axis(values, order, axis=0))
    positive = np.take_along_axis(is_positive, order, axis=0)
    before = np.zeros((len(values) + 1, values.shape[1]), dtype=np.int64)
    positive.cumsum(axis=0, out=before[1:])
    # Positives below this value, and positives not above it: equal ones count once, others twice.
    positives = np.take_along_axis(before, begins, axis=0) + np.take_along_axis(before, ends, axis=0)
    twice = np.empty_like(begins)
    np.put_along_axis(twice, order, np.where(positive, begins + ends - positives, positives), axis=0)
    return twice


def tied_places(ordered: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the run of equal values begins, and where it ends, for every place of sorted columns [n, c]."""
    n = len(ordered)
    place = np.broadcast_to(np.arange(n)[:, None], ordered.shape)
    changes = ordered[1:] != ordered[:-1]
    if changes.all():
        return place.copy(), place + 1
    edge = np.ones((1, ordered.shape[1]), dtype=bool)
    begins = np.maximum.accumulate(np.where(np.concatenate([edge, changes]), place, 0), axis=0)
    ends = np.where(np.concatenate([changes, edge]), place + 1, n)
    return begins, np.minimum.accumulate(ends[::-1], axis=0)[::-1]
