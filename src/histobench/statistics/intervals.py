"""Intervals of independent tries (exact), and of the older bootstrap (percentile, BCa)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
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
        return _fallback(replicates, level, "the estimate is outside its own resamples")
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


def exact_bounds(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's bounds of a share of n independent tries.

    >>> low, high = exact_bounds(4, 6)
    >>> round(low, 2), round(high, 2)
    (0.22, 0.96)
    """
    tail = (1 - level) / 2
    low = 0.0 if successes <= 0 else float(special.betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes >= n else float(special.betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high
