"""Intervals over groups for robustness measures, and paired differences between encoders.

Groups (patients or slides) are drawn with replacement, the same draws for every encoder; an image counts as
often as its group was drawn. Neighbours are not searched again in a draw: the terms of an image are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.robustness.indices import TAIL, Evidence
from histobench.roi.robustness.neighbours import Floats, Ints

#: Values of a measure in every draw, from how often each group was drawn [draws, groups].
Redrawn = Callable[[NDArray[np.int64]], Floats]
_DRAWS_AT_ONCE = 64


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval over groups; the bounds are None where groups show no spread."""

    value: float
    low: float | None
    high: float | None
    groups: int


def draw_groups(groups: Ints, *, draws: int = 2000, seed: int = 0) -> NDArray[np.int64]:
    """How often each group is drawn [draws, groups]."""
    count = len(np.unique(groups))
    generator = np.random.default_rng(seed)
    return generator.multinomial(count, np.full(count, 1 / count), size=draws)


def of_evidence(evidence: Evidence, groups: Ints) -> Redrawn:
    """RI or MaRI in every draw: a ratio of sums over groups."""
    _, place = np.unique(groups, return_inverse=True)
    so, os = (np.bincount(place, weights=terms) for terms in (evidence.so, evidence.os))

    def redrawn(times: NDArray[np.int64]) -> Floats:
        with np.errstate(invalid="ignore"):
            values: Floats = times @ so / (times @ so + times @ os)
        return values

    return redrawn


def of_mean(terms: Floats, groups: Ints) -> Redrawn:
    """A mean over images in every draw, e.g. the share of margins at or below zero, or an accuracy."""
    _, place = np.unique(groups, return_inverse=True)
    total, count = np.bincount(place, weights=terms), np.bincount(place)

    def redrawn(times: NDArray[np.int64]) -> Floats:
        values: Floats = times @ total / (times @ count)
        return values

    return redrawn


def of_quantile(terms: Floats, groups: Ints, share: float, *, tail_mean: bool = False) -> Redrawn:
    """A quantile over images in every draw (as NumPy's default), or the mean of all at or below it."""
    _, place = np.unique(groups, return_inverse=True)
    order = np.argsort(terms, kind="stable")
    ranked, owner = terms[order], place[order]

    def redrawn(times: NDArray[np.int64]) -> Floats:
        values = np.empty(len(times))
        for start in range(0, len(times), _DRAWS_AT_ONCE):
            weights = times[start : start + _DRAWS_AT_ONCE][:, owner]
            reach = np.cumsum(weights, axis=1)
            for row, (weight, sums) in enumerate(zip(weights, reach, strict=True)):
                position = share * (sums[-1] - 1)
                below, above = np.searchsorted(sums, (np.floor(position), np.ceil(position)), side="right")
                edge = ranked[below] + (position - np.floor(position)) * (ranked[above] - ranked[below])
                if tail_mean:
                    within = ranked <= edge
                    edge = (ranked[within] * weight[within]).sum() / weight[within].sum()
                values[start + row] = edge
        return values

    return redrawn


def tail_of(terms: Floats, groups: Ints) -> Redrawn:
    """The mean of the lowest tenth in every draw."""
    return of_quantile(terms, groups, TAIL, tail_mean=True)


def interval(value: float, redrawn: Redrawn, times: NDArray[np.int64], *, level: float = 0.95) -> Interval:
    """Percentile interval of a measure over draws of groups."""
    groups = times.shape[1]
    if groups < 2:
        return Interval(value, None, None, groups)
    low, high = _bounds(redrawn(times), level)
    if low == high:  # no draw differs from another: that shows no spread, and does not make a value certain
        return Interval(value, None, None, groups)
    return Interval(value, low, high, groups)


def difference(
    values: Sequence[float], redrawn: Sequence[Redrawn], times: NDArray[np.int64], *, level: float = 0.95
) -> tuple[Interval, float]:
    """First minus second encoder, paired by group, with a two-sided bootstrap p-value."""
    apart = redrawn[0](times) - redrawn[1](times)
    apart = apart[np.isfinite(apart)]
    value = values[0] - values[1]
    if times.shape[1] < 2 or not len(apart):
        return Interval(value, None, None, times.shape[1]), float("nan")
    low, high = _bounds(apart, level)
    tail = min((1 + np.sum(apart <= 0)) / (1 + len(apart)), (1 + np.sum(apart >= 0)) / (1 + len(apart)))
    return Interval(value, low, high, times.shape[1]), float(min(1.0, 2 * tail))


def _bounds(values: Floats, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    low, high = np.nanquantile(values, (tail, 1 - tail))
    return float(low), float(high)
