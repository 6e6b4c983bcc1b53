"""A plan from a pilot that knows its own noise only roughly: a range of sizes, and what a size assures.

A pilot of 8 patients may show half or twice the true variance. Planning with its variance as if it were the
true one promises a power of 0.8 and keeps 0.6 to 0.7. Given the pilot, the true variance is distributed as
the pilot's times freedom / chi-squared(freedom); the *assurance* of a size is its power, averaged over
that. A size whose assurance is 0.8 shows the difference in 80% of studies that are planned this way.

The test at the end is Student's t with the degrees of freedom of the new size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from histobench.core.statistics.jackknife import t_quantile

Floats = NDArray[np.float64]
#: The middle share of what the true variance may be, for the range of sizes.
RANGE = 0.8
#: Equally likely values of the true variance that the assurance is averaged over.
_VALUES = 64
_LARGEST = 10**9


@dataclass(frozen=True)
class Pilot:
    """What a pilot study says about the noise of a difference."""

    standard_error: float  # of the difference on the pilot
    units: int
    freedom: float  # degrees of freedom of that standard error

    def spreads(self, shares: ArrayLike) -> Floats:
        """What the pilot's standard error may truly be: these quantiles of it."""
        quantiles = special.chdtri(self.freedom, np.asarray(shares, dtype=np.float64))
        return np.asarray(self.standard_error * np.sqrt(self.freedom / quantiles))

    def freedom_at(self, units: float) -> float:
        """The degrees of freedom that a study of that many units like these has."""
        return max((self.freedom + 1) * units / self.units - 1, 0.5)


@dataclass(frozen=True)
class PlannedUnits:
    """How many units show a difference with the wanted power."""

    at_pilot: int  # if the pilot's noise were exactly the true one
    assured: int  # averaged over what the true noise may be
    low: int  # the range over the middle 80% of what the true noise may be
    high: int
    assurance_at_pilot: float  # the average power that `at_pilot` really has


def t_power(pilot: Pilot, spread: ArrayLike, units: float, delta: float, *, alpha: float = 0.05) -> Floats:
    """The power of Student's t on `units` units, where the pilot's standard error truly is `spread`.

    >>> pilot = Pilot(standard_error=0.02, units=100, freedom=99)
    >>> round(float(t_power(pilot, 0.02, 199, 0.04)), 2)
    0.8
    """
    freedom = pilot.freedom_at(units)
    reach = t_quantile(freedom, 1 - alpha)
    centre = delta / (np.asarray(spread, dtype=np.float64) * math.sqrt(pilot.units / units))
    if freedom > 500:  # the noncentral t is slow and, for far centres, unsure of itself here
        upper = special.ndtr(centre - reach)
        return np.asarray(upper + special.ndtr(-centre - reach))
    # Beyond 30 standard errors the power is 1, and the noncentral t does not converge.
    near = np.minimum(centre, 30.0)
    power = 1 - special.nctdtr(freedom, near, reach) + special.nctdtr(freedom, near, -reach)
    return np.asarray(np.where(centre >= 30, 1.0, np.clip(np.nan_to_num(power, nan=1.0), 0.0, 1.0)))


def assurance(pilot: Pilot, units: float, delta: float, *, alpha: float = 0.05) -> float:
    """The power of `units` units, averaged over what the true noise may be."""
    shares = (np.arange(_VALUES) + 0.5) / _VALUES
    return float(t_power(pilot, pilot.spreads(shares), units, delta, alpha=alpha).mean())


def planned_units(pilot: Pilot, delta: float, *, alpha: float = 0.05, power: float = 0.8) -> PlannedUnits:
    """Sizes for a true difference of `delta`, from the pilot's noise and what it may truly be."""
    if not (delta > 0 and pilot.standard_error > 0 and pilot.freedom > 0):
        raise ValueError("a plan needs a positive difference and a pilot with at least two units that vary")

    def smallest(share: float | None) -> int:
        if share is None:
            return _smallest(lambda n: assurance(pilot, n, delta, alpha=alpha), power)
        spread = pilot.standard_error if share < 0 else float(pilot.spreads(share))
        return _smallest(lambda n: float(t_power(pilot, spread, n, delta, alpha=alpha)), power)

    at_pilot = smallest(-1.0)
    tail = (1 - RANGE) / 2
    return PlannedUnits(
        at_pilot=at_pilot,
        assured=smallest(None),
        low=smallest(tail),
        high=smallest(1 - tail),
        assurance_at_pilot=assurance(pilot, at_pilot, delta, alpha=alpha),
    )


def _smallest(power_at: Callable[[int], float], wanted: float) -> int:
    """The smallest number of units, at least 2, whose power reaches `wanted`."""
    high = 2
    while high < _LARGEST and power_at(high) < wanted:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if power_at(middle) >= wanted:
            high = middle
        else:
            low = middle
    return high
