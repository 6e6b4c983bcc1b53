"""DeLong's paired test of the AUROC, also for the macro one-vs-rest AUROC.

With two classes this is DeLong, DeLong and Clarke-Pearson (1988). With more classes the macro AUROC is
a mean of one-vs-rest AUROCs, and one sample enters all of them: as a positive of its own class and as a
negative of every other. Its placement values are added up over the classes first, and the variance is
taken of these sums within each class. For two classes that is the original formula; for more it is the
variance with the class sizes held fixed, as a bootstrap stratified by class estimates it.

With `clusters` (patients, slides) the centred sums are added up within each cluster before squaring, so
samples of a cluster may depend on each other. Few clusters tell the variance only roughly: p-values and
intervals then go by Student's t with one degree of freedom less than there are clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.jackknife import t_p_value, t_quantile

Floats = NDArray[np.float64]
#: Scores that are ranked at a time.
_NUMBERS_AT_ONCE = 2**20


@dataclass(frozen=True)
class DeLongTest:
    """Difference of two paired AUROCs (first - second) and the two-sided p-value of "no difference"."""

    first: float
    second: float
    variance: float  # of the difference
    z: float
    p_value: float
    freedom: float = math.inf  # degrees of freedom of the variance

    @property
    def difference(self) -> float:
        """first - second."""
        return self.first - self.second

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Normal interval of the difference (Student's for clusters)."""
        half = t_quantile(self.freedom, level) * self.variance**0.5
        return self.difference - half, self.difference + half


def delong_test(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, *, clusters: Sequence[object] | None = None
) -> DeLongTest:
    """Paired test of two models' AUROCs on the same samples."""
    if np.shape(first) != np.shape(second):
        raise ValueError(f"both models need the same samples: {np.shape(first)} and {np.shape(second)}")
    samples = _Samples.of(labels, clusters)
    (value_a, shares_a), (value_b, shares_b) = (_placements(one, samples.labels) for one in (first, second))
    variance = samples.variance(shares_a - shares_b)
    difference = value_a - value_b
    if variance <= 1e-24:  # the same ranking of the samples, up to rounding
        z = 0.0 if abs(difference) < 1e-12 else float(np.copysign(np.inf, difference))
    else:
        z = difference / variance**0.5
    return DeLongTest(value_a, value_b, variance, z, float(t_p_value(z, samples.freedom)), samples.freedom)


@dataclass(frozen=True)
class _Samples:
    """Whose scores are ranked: class labels, and classes and clusters as codes from 0 on."""

    labels: NDArray[np.int64]
    class_of: NDArray[np.int64]
    cluster_of: NDArray[np.int64] | None

    @classmethod
    def of(cls, labels: ArrayLike, clusters: Sequence[object] | None) -> _Samples:
        given = np.asarray(labels).astype(np.int64)
        return cls(given, _codes(given), None if clusters is None else _codes(np.asarray(clusters)))

    @property
    def freedom(self) -> float:
        return math.inf if self.cluster_of is None else float(self.cluster_of.max())

    def variance(self, shares: Floats) -> float:
        sizes = np.bincount(self.class_of)
        centred = shares - (np.bincount(self.class_of, shares) / sizes)[self.class_of]
        if self.cluster_of is not None:
            sums = np.bincount(self.cluster_of, centred)
            if len(sums) < 2:
                raise ValueError("one cluster alone gives no variance")
            return float((sums**2).sum() * len(sums) / (len(sums) - 1))
        if sizes.min() < 2:
            raise ValueError("a class with one sample gives no variance")
        return float((np.bincount(self.class_of, centred**2) * sizes / (sizes - 1)).sum())


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _placements(scores: ArrayLike, labels: NDArray[np.int64]) -> tuple[float, Floats]:
    """The (macro) AUROC and each sample's share in it."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim == 1:
        values, positives = values[:, None], [1]
    else:
        positives = list(range(values.shape[1]))
    if len(values) != len(labels):
        raise ValueError(f"{len(values)} rows of scores for {len(labels)} labels")
    total, shares = 0.0, np.zeros(len(labels))
    step = max(1, _NUMBERS_AT_ONCE // max(len(labels), 1))
    for start in range(0, len(positives), step):
        part = positives[start : start + step]
        is_positive = labels[:, None] == np.array(part)
        for positive, count in zip(part, is_positive.sum(axis=0).tolist(), strict=True):
            if count in (0, len(labels)):
                raise ValueError(f"class {positive} has {count} of {len(labels)} samples: no AUROC")
        outranked = _outranked(values[:, start : start + step], is_positive)
        for won, positive in zip(outranked.T, is_positive.T, strict=True):
            total += float(won[positive].mean())
            shares[positive] += won[positive] / positive.sum()
            shares[~positive] += (1 - won[~positive]) / (~positive).sum()
    return total / len(positives), shares / len(positives)


def _outranked(values: Floats, is_positive: NDArray[np.bool_]) -> Floats:
    """For each value of a column the share of the other side that lies below it; equal ones count half."""
    if np.isnan(values).any():
        return np.where(np.isnan(values).any(axis=0), np.nan, _outranked(np.nan_to_num(values), is_positive))
    n_positive = is_positive.sum(axis=0)
    others = np.where(is_positive, len(values) - n_positive, n_positive)
    return np.asarray(twice_outranked(values, is_positive) / (2 * others))


def twice_outranked(values: Floats, is_positive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each value of a column [n, c] twice the number of the other side below it; equal ones count half.

    >>> values = np.array([[0.1], [0.4], [0.4], [0.8]])
    >>> twice_outranked(values, np.array([[False], [False], [True], [True]])).T
    array([[0, 1, 3, 4]])
    """
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
