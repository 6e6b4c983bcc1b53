"""Intervals of proportions and from bootstrap replicates (percentile, BCa)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
#: Of the resamples, the least share on which a metric must be defined. With fewer, what is left is no picture
#: of the spread: it shows the resamples that happened to hold the rare classes.
LEAST_VALID = 0.5
METHODS = ("percentile", "bca")


@dataclass(frozen=True)
class Interval:
    """A two-sided interval; without bounds, `reason` says why."""

    low: float | None
    high: float | None
    level: float = 0.95
    method: str = "percentile"
    n_valid: int = 0  # resamples on which the metric was defined
    reason: str | None = None

    @classmethod
    def of(
        cls, low: float, high: float, *, level: float, method: str, n_valid: int = 0, why_none: str
    ) -> Interval:
        """With these bounds where both are finite, otherwise without and for the reason given."""
        if np.isfinite([low, high]).all():
            return cls(float(low), float(high), level, method, n_valid)
        return cls(None, None, level, method, 0, why_none)

    def contains(self, value: float) -> bool:
        """Whether `value` lies inside, bounds included; an interval without bounds excludes nothing."""
        if self.low is None or self.high is None:
            return True
        return self.low <= value <= self.high

    def negated(self) -> Interval:
        """The interval of the negative value."""
        low, high = self.low, self.high
        return replace(self, low=None if high is None else -high, high=None if low is None else -low)


def most_unseen(n: float, *, level: float = 0.95) -> float:
    """The largest share of a kind of which none was seen among n (Clopper and Pearson's upper bound).

    >>> round(most_unseen(100), 4)
    0.0362
    """
    return float(1 - ((1 - level) / 2) ** (1 / n))


def percentile_interval(replicates: Floats, *, level: float = 0.95) -> Interval:
    """The middle `level` of the replicates.

    >>> percentile_interval(np.arange(101.0), level=0.5)
    Interval(low=25.0, high=75.0, level=0.5, method='percentile', n_valid=101, reason=None)
    """
    valid = _valid(replicates)
    if len(valid) < max(2, LEAST_VALID * len(replicates)):
        return _without_bounds(replicates, level, "percentile")
    tail = (1 - level) / 2
    low, high = np.quantile(valid, [tail, 1 - tail])
    return Interval(float(low), float(high), level, "percentile", len(valid), _partial(replicates, valid))


def bca_interval(
    replicates: Floats,
    estimate: float,
    jackknife: Floats,
    *,
    strata: NDArray[np.int64] | None = None,
    level: float = 0.95,
) -> Interval:
    """The BCa interval (Efron 1987); `jackknife` are leave-one-out values, in `strata` where drawn so.

    Where BCa is undefined the percentile interval is returned, with the reason.
    """
    valid = _valid(replicates)
    if len(valid) < max(2, LEAST_VALID * len(replicates)):
        return _without_bounds(replicates, level, "bca")
    if np.ptp(valid) == 0:
        return percentile_interval(replicates, level=level)
    below = (np.count_nonzero(valid < estimate) + np.count_nonzero(valid <= estimate)) / (2 * len(valid))
    if not 0 < below < 1:
        return _fallback(replicates, level, "the estimate lies outside its own resamples")
    acceleration = acceleration_of(jackknife, strata=strata)
    if acceleration is None:
        return _fallback(replicates, level, "the metric is undefined when a unit is left out")
    bias = special.ndtri(below)
    tails = special.ndtri(np.array([(1 - level) / 2, (1 + level) / 2])) + bias
    low, high = np.quantile(valid, special.ndtr(bias + tails / (1 - acceleration * tails)))
    return Interval(float(low), float(high), level, "bca", len(valid), _partial(replicates, valid))


def acceleration_of(jackknife: Floats, *, strata: NDArray[np.int64] | None = None) -> float | None:
    """BCa's acceleration from leave-one-out values; strata enter as separate samples do."""
    values = np.asarray(jackknife, dtype=np.float64)
    groups = np.zeros(len(values), dtype=np.int64) if strata is None else np.asarray(strata)
    cubes = squares = 0.0
    for group in np.unique(groups):
        members = values[groups == group]
        if len(members) < 2:
            continue  # a stratum of one unit never varies
        if not np.all(np.isfinite(members)):
            return None
        influence = (len(members) - 1) * (members.mean() - members)
        cubes += float((influence**3).sum()) / len(members) ** 3
        squares += float((influence**2).sum()) / len(members) ** 2
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0


def _valid(replicates: Floats) -> Floats:
    values = np.asarray(replicates, dtype=np.float64)
    return values[np.isfinite(values)]


def _partial(replicates: Floats, valid: Floats) -> str | None:
    missing = len(replicates) - len(valid)
    return f"undefined on {missing} of {len(replicates)} resamples, which were left out" if missing else None


def _without_bounds(replicates: Floats, level: float, method: str) -> Interval:
    valid = len(_valid(replicates))
    reason = f"the metric is defined on only {valid} of {len(replicates)} resamples"
    return Interval(None, None, level, method, valid, reason)


def _fallback(replicates: Floats, level: float, why: str) -> Interval:
    reason = f"percentile instead of BCa: {why}"
    return replace(percentile_interval(replicates, level=level), reason=reason)


# Intervals of a proportion, and of a mean of independent proportions (classes, each with its own size).

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
