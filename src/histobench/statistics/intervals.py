"""Intervals of independent tries (exact), and of the older bootstrap (percentile)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Of the resamples, the least share on which a metric must be defined. With fewer, what is left is no picture
#: of the spread: it shows the resamples that happened to hold the rare classes.
LEAST_VALID = 0.5


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
        return self.low is None or self.high is None or self.low <= value <= self.high

    def negated(self) -> Interval:
        low, high = self.low, self.high
        return replace(self, low=None if high is None else -high, high=None if low is None else -low)


def percentile_interval(replicates: Floats) -> Interval:
    """The middle 95 % of the replicates."""
    valid, count = replicates[np.isfinite(replicates)], len(replicates)
    if len(valid) < max(2, LEAST_VALID * count):
        reason = f"the metric is defined on only {len(valid)} of {count} resamples"
        return Interval(None, None, n_valid=len(valid), reason=reason)
    missing, tail = count - len(valid), (1 - 0.95) / 2
    low, high = np.quantile(valid, [tail, 1 - tail])
    note = f"undefined on {missing} of {count} resamples, which were left out" if missing else None
    return Interval(float(low), float(high), n_valid=len(valid), reason=note)


def exact_bounds(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's bounds of a share of n independent tries."""
    tail = (1 - level) / 2
    low = 0.0 if successes <= 0 else float(scipy.special.betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes >= n else float(scipy.special.betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high
