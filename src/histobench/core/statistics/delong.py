"""DeLong's variance of the AUROC and the paired test, also for the macro one-vs-rest AUROC.

With two classes this is DeLong, DeLong and Clarke-Pearson (1988). With more classes the macro AUROC is
a mean of one-vs-rest AUROCs, and one sample enters all of them: as a positive of its own class and as a
negative of every other. Its placement values are added up over the classes first, and the variance is
taken of these sums within each class. For two classes that is the original formula; for more it is the
variance with the class sizes held fixed, as a bootstrap stratified by class estimates it.

With `clusters` (patients, slides) the centred sums are added up within each cluster before squaring, so
samples of a cluster may depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Auroc:
    """An AUROC with its variance."""

    value: float
    variance: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Normal interval, cut at 0 and 1."""
        half = float(special.ndtri((1 + level) / 2)) * self.variance**0.5
        return max(0.0, self.value - half), min(1.0, self.value + half)


@dataclass(frozen=True)
class DeLongTest:
    """Difference of two paired AUROCs (first - second) and the two-sided p-value of "no difference"."""

    first: float
    second: float
    variance: float  # of the difference
    z: float
    p_value: float

    @property
    def difference(self) -> float:
        """first - second."""
        return self.first - self.second

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Normal interval of the difference."""
        half = float(special.ndtri((1 + level) / 2)) * self.variance**0.5
        return self.difference - half, self.difference + half


def delong_auroc(scores: ArrayLike, labels: ArrayLike, *, clusters: Sequence[object] | None = None) -> Auroc:
    """AUROC and variance; `scores` are [n] for label 1 against 0, or [n, c] with labels 0..c-1.

    >>> delong_auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value
    0.75
    """
    value, shares, classes = _placements(scores, labels)
    return Auroc(value, _variance(shares, classes, clusters))


def delong_test(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, *, clusters: Sequence[object] | None = None
) -> DeLongTest:
    """Paired test of two models' AUROCs on the same samples."""
    if np.shape(first) != np.shape(second):
        raise ValueError(f"both models need the same samples: {np.shape(first)} and {np.shape(second)}")
    return _paired(_placements(first, labels), _placements(second, labels), clusters)


def delong_all_pairs(
    models: Sequence[ArrayLike], labels: ArrayLike, *, clusters: Sequence[object] | None = None
) -> dict[tuple[int, int], DeLongTest]:
    """`delong_test` of every pair i < j of models on the same samples, ranking each model's scores once.

    >>> tests = delong_all_pairs([[0.1, 0.4, 0.35, 0.8], [0.2, 0.1, 0.7, 0.8]], [0, 0, 1, 1])
    >>> tests[0, 1].difference
    -0.25
    """
    placed = [_placements(scores, labels) for scores in models]
    return {
        (i, j): _paired(placed[i], placed[j], clusters)
        for i in range(len(placed))
        for j in range(i + 1, len(placed))
    }


def _paired(
    first: tuple[float, Floats, NDArray[np.int64]],
    second: tuple[float, Floats, NDArray[np.int64]],
    clusters: Sequence[object] | None,
) -> DeLongTest:
    value_a, shares_a, classes = first
    value_b, shares_b, _ = second
    variance = _variance(shares_a - shares_b, classes, clusters)
    difference = value_a - value_b
    if variance <= 1e-24:  # the same ranking of the samples, up to rounding
        z = 0.0 if abs(difference) < 1e-12 else float(np.copysign(np.inf, difference))
    else:
        z = difference / variance**0.5
    return DeLongTest(value_a, value_b, variance, z, float(2 * special.ndtr(-abs(z))))


def _placements(scores: ArrayLike, labels: ArrayLike) -> tuple[float, Floats, NDArray[np.int64]]:
    """The (macro) AUROC, each sample's share in it, and the class of each sample."""
    values = np.asarray(scores, dtype=np.float64)
    classes = np.asarray(labels).astype(np.int64)
    if values.ndim == 1:
        values, positives = values[:, None], [1]
    else:
        positives = list(range(values.shape[1]))
    if len(values) != len(classes):
        raise ValueError(f"{len(values)} rows of scores for {len(classes)} labels")
    total, shares = 0.0, np.zeros(len(classes))
    for column, positive in zip(values.T, positives, strict=True):
        is_positive = classes == positive
        n_positive, n_negative = int(is_positive.sum()), int((~is_positive).sum())
        if n_positive == 0 or n_negative == 0:
            raise ValueError(f"class {positive} has {n_positive} of {len(classes)} samples: no AUROC")
        above = _share_below(column[is_positive], column[~is_positive])
        below = 1 - _share_below(column[~is_positive], column[is_positive])
        total += float(above.mean())
        shares[is_positive] += above / n_positive
        shares[~is_positive] += below / n_negative
    return total / len(positives), shares / len(positives), classes


def _share_below(values: Floats, others: Floats) -> Floats:
    """For each value the share of `others` below it; equal ones count half."""
    if np.isnan(values).any() or np.isnan(others).any():
        return np.full(len(values), np.nan)
    ordered = np.sort(others)
    below_and_twice_equal = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")
    return np.asarray(below_and_twice_equal / (2 * len(ordered)), dtype=np.float64)


def _variance(shares: Floats, classes: NDArray[np.int64], clusters: Sequence[object] | None) -> float:
    codes = np.unique(classes, return_inverse=True)[1]
    sizes = np.bincount(codes)
    centred = shares - (np.bincount(codes, shares) / sizes)[codes]
    if clusters is not None:
        sums = np.bincount(np.unique(np.asarray(clusters), return_inverse=True)[1], centred)
        if len(sums) < 2:
            raise ValueError("one cluster alone gives no variance")
        return float((sums**2).sum() * len(sums) / (len(sums) - 1))
    if sizes.min() < 2:
        raise ValueError("a class with one sample gives no variance")
    return float((np.bincount(codes, centred**2) * sizes / (sizes - 1)).sum())
