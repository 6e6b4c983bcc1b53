"""Intervals of a proportion, and of a mean of independent proportions (classes, each with its own size).

Wilson's interval with the mending of Brown, Cai and DasGupta (2001): next to 0 and 1 its inner bound lies too
far in, and the Poisson bound takes its place. A mean of independent proportions gets its interval by the
method of variance estimates recovery (MOVER; Newcombe 2001, Zou and Donner 2008): the distances from each
proportion to its own bounds are added up in squares. Both have a width at 0 and at 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
#: Clusters with a success (or a failure) that it takes to know the spread between clusters.
FEW_CLUSTERS = 10


def wilson_bounds(successes: ArrayLike, n: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Lower and upper bound for `successes` among `n`; n need not be whole (an effective size).

    >>> low, high = wilson_bounds([0, 50], 100)
    >>> low.round(4).tolist(), high.round(4).tolist()
    ([0.0, 0.4038], [0.037, 0.5962])
    """
    x, size = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    z = float(special.ndtri((1 + level) / 2))
    share = x / size
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * np.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    low = np.where(x <= 0, 0.0, np.maximum(middle - half, 0.0))
    high = np.where(x >= size, 1.0, np.minimum(middle + half, 1.0))
    few = np.where(size <= 50, 2, 3)
    low = np.where((x > 0) & (x <= few), np.minimum(low, _poisson(x, level) / size), low)
    misses = size - x
    high = np.where(
        (misses > 0) & (misses <= few), np.maximum(high, 1 - _poisson(misses, level) / size), high
    )
    return low, high


def mean_of_proportions(
    successes: ArrayLike, n: ArrayLike, *, level: float = 0.95, weights: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """MOVER bounds of the (weighted) mean of independent proportions; equal weights by default.

    Proportions are along the last axis: [c], or [m, c] for m means at once.

    >>> low, high = mean_of_proportions([9, 40], [10, 40])
    >>> round(float(low), 3), round(float(high), 3)
    (0.792, 0.997)
    """
    x, size = np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    share = x / size
    part = np.asarray(1 / share.shape[-1] if weights is None else weights, dtype=np.float64)
    low, high = wilson_bounds(x, size, level=level)
    mean = (part * share).sum(axis=-1)
    return (
        np.maximum(0.0, mean - np.sqrt(((part * (share - low)) ** 2).sum(axis=-1))),
        np.minimum(1.0, mean + np.sqrt(((part * (high - share)) ** 2).sum(axis=-1))),
    )


def clustered_bounds(
    successes: ArrayLike, n: ArrayLike, *, strata: ArrayLike | None = None, level: float = 0.95
) -> tuple[float, float]:
    """Bounds of one proportion over clusters (tasks, patients), each with its successes among n tries.

    Clopper and Pearson's interval with as many independent tries as the spread between clusters is worth,
    lowered by Student's quantile for the clusters that were seen (Korn and Graubard 1998). Where fewer than
    ten clusters have any success, or any failure, they know that spread badly: each cluster then counts once.
    Spread within `strata` counts alone.

    >>> low, high = clustered_bounds([4, 0, 3, 4, 1, 2], [4, 4, 4, 4, 4, 4])
    >>> round(low, 3), round(high, 3)
    (0.083, 0.97)
    """
    x, size = np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    clusters, total = len(x), float(size.sum())
    share = float(x.sum()) / total
    stratum = (
        np.zeros(clusters, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
    )
    members = np.bincount(stratum)
    if members.min() < 2:  # a stratum of one has no spread of its own
        stratum, members = np.zeros(clusters, dtype=np.int64), np.array([clusters])
    rest = (x - share * size) / total
    rest = rest - (np.bincount(stratum, rest) / members)[stratum]
    variance = float((rest**2 * (members / (members - 1.0))[stratum]).sum())
    freedom = float(clusters - len(members))
    worth = min(share * (1 - share) / variance, total) if variance > 1e-15 else float(clusters)
    if min(int((x > 0).sum()), int((x < size).sum())) < FEW_CLUSTERS:
        worth = min(worth, float(clusters))
    if 0 < share < 1:
        worth *= float(special.ndtri((1 + level) / 2) / special.stdtrit(freedom, (1 + level) / 2)) ** 2
    hits = share * worth
    tail = (1 - level) / 2
    low = 0.0 if share <= 0 else float(special.betaincinv(hits, worth - hits + 1, tail))
    high = 1.0 if share >= 1 else float(special.betaincinv(hits + 1, worth - hits, 1 - tail))
    return low, high


def _poisson(x: Floats, level: float) -> Floats:
    """The lower bound of a Poisson mean of which x were seen, one-sided at 1 - level."""
    return np.asarray(special.gammaincinv(np.maximum(x, 1e-9), 1 - level), dtype=np.float64)
