"""How many test images or patients a difference needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.jackknife import LEAST_FREEDOM, freedom_of_sizes, leave_one_out, t_quantile
from histobench.statistics.resampling import Floats, Metric, SamplingDesign

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
    unseen: float = 0.0  # what `compare` adds to the standard error, as the root of a square
    test_freedom: float = np.inf  # degrees of freedom that `compare` takes t with, at most

    def spreads(self, shares: ArrayLike) -> Floats:
        quantiles = scipy.special.chdtri(self.freedom, np.asarray(shares, dtype=np.float64))
        return np.asarray(self.standard_error * np.sqrt(self.freedom / quantiles))

    def reach_at(self, units: float, spread: ArrayLike, alpha: float) -> Floats:
        """How many standard errors a difference must have on so many units, with all that `compare` adds.

        The unseen moves shrink as 1 / units, and the standard error (`spread` on the pilot) as its root.
        """
        freedom = max(min(self.freedom, self.test_freedom) * units / self.units, LEAST_FREEDOM)
        added = self.unseen**2 * self.units / units / np.asarray(spread, dtype=np.float64) ** 2
        return np.asarray(t_quantile(min(freedom, units - 1.0), 1 - alpha) * np.sqrt(1 + added))


@dataclass(frozen=True)
class PlannedUnits:
    at_pilot: int  # if the pilot's noise were exactly the true one
    assured: int  # averaged over what the true noise may be
    low: int  # the range over the middle 80% of what the true noise may be
    high: int
    assurance_at_pilot: float  # the average power that `at_pilot` really has


def t_power(pilot: Pilot, spread: ArrayLike, units: float, delta: float, *, alpha: float = 0.05) -> Floats:
    """The power of Student's t on `units` units, where the pilot's standard error truly is `spread`."""
    freedom = max((pilot.freedom + 1) * units / pilot.units - 1, 0.5)
    reach = pilot.reach_at(units, spread, alpha)
    centre = delta / (np.asarray(spread, dtype=np.float64) * math.sqrt(pilot.units / units))
    if freedom > 500:  # the noncentral t is slow and, for far centres, unsure of itself here
        return np.asarray(scipy.special.ndtr(centre - reach) + scipy.special.ndtr(-centre - reach))
    # Beyond 30 standard errors the power is 1, and the noncentral t does not converge.
    near = np.minimum(centre, 30.0)
    power = 1 - scipy.special.nctdtr(freedom, near, reach) + scipy.special.nctdtr(freedom, near, -reach)
    return np.asarray(np.where(centre >= 30, 1.0, np.clip(np.nan_to_num(power, nan=1.0), 0.0, 1.0)))


def assurance(pilot: Pilot, units: float, delta: float, *, alpha: float = 0.05) -> float:
    shares = (np.arange(_VALUES) + 0.5) / _VALUES
    return float(t_power(pilot, pilot.spreads(shares), units, delta, alpha=alpha).mean())


def planned_units(pilot: Pilot, delta: float, *, alpha: float = 0.05, power: float = 0.8) -> PlannedUnits:
    def smallest(spread: float) -> int:
        return _smallest_exact(lambda n: float(t_power(pilot, spread, n, delta, alpha=alpha)), power)

    at_pilot = smallest(pilot.standard_error)
    tail = (1 - RANGE) / 2
    low, high = map(smallest, pilot.spreads([tail, 1 - tail]).tolist())
    return PlannedUnits(
        at_pilot=at_pilot,
        assured=_smallest_exact(lambda n: assurance(pilot, n, delta, alpha=alpha), power),
        low=low,
        high=high,
        assurance_at_pilot=assurance(pilot, at_pilot, delta, alpha=alpha),
    )


def _smallest_exact(power_at: Callable[[int], float], wanted: float) -> int:
    """The smallest number of units, at least 2, whose power reaches `wanted`."""
    high = 2
    while high < _LARGEST and power_at(high) < wanted:
        high *= 2
    return _between(high // 2, high, power_at, wanted)


def _between(
    low: int, high: int, power_at: Callable[[int], float], wanted: float, *, parts: float = math.inf
) -> int:
    """The smallest size up to `high` whose power reaches `wanted`, to one part in `parts` of it."""
    while high - low > max(1, high // parts):
        middle = (low + high) // 2
        if power_at(middle) >= wanted:
            high = middle
        else:
            low = middle
    return high


def effective_number(sizes: ArrayLike) -> float:
    """How many units of equal size tell as much about the spread as units of these sizes.

    >>> effective_number([10, 10, 10]), round(effective_number([28, 1, 1]), 2)
    (3.0, 1.15)
    """
    weights = np.asarray(sizes, dtype=np.float64)
    total = float((weights**2).sum())
    return float(weights.sum() ** 2 / total) if total > 0 else 0.0


#: A pilot shows little of the tail of its noise: its degrees of freedom count by so much.
SHOWN_TAIL = 0.5
#: Beyond this many times the present size the noise is as good as normal and simulation only costs time.
SIMULATE_UP_TO = 10


@dataclass(frozen=True)
class PowerEstimate:
    """Units (images, or clusters such as patients) needed, and what the present test set can do.

    The present test set is a pilot that knows its own noise only roughly: `units_needed` has the wanted power
    on average over what the true noise may be (its assurance).
    """

    units_needed: int
    units_needed_normal: int  # by the normal formula, from the standard error alone
    units_at_pilot: int  # if the pilot's noise were exactly the true one
    assurance_at_pilot: float  # the power that `units_at_pilot` really has, on average
    units_low: int  # over the middle 80% of what the true noise may be
    units_high: int
    samples_needed: int  # images; with clusters: at the present mean cluster size
    present_units: int
    present_power: float  # chance that the present test set shows a difference of delta
    detectable: float  # the difference that the present test set shows with the wanted power
    observed: float  # the stored difference, first - second
    standard_error: float  # of the difference on the present test set


def units_for_error(
    standard_error: float, n_units: int, delta: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Units for any metric whose standard error is `standard_error` at `n_units` and shrinks as 1/sqrt(n)."""
    reach = float(scipy.special.ndtri(1 - alpha / 2) + scipy.special.ndtri(power))
    return max(2, math.ceil(n_units * (standard_error * reach / delta) ** 2))


def simulated_power(
    noise: UnitNoise,
    pilot: Pilot,
    n_units: int,
    *,
    delta: float,
    alpha: float = 0.05,
    n_resamples: int = 1000,
    seed: int = 0,
) -> float:
    """The share of simulated test sets of `n_units` units on which a true difference `delta` shows.

    Units are drawn from those of the pilot, each with what it does to the difference; `delta` takes the place
    of the observed difference. As in `compare`, each test set has its own standard error, to which is added
    what was not seen: units that are rare and matter much move both.
    """
    effects = noise.effects
    drawn = max(round(n_units * len(effects) / noise.units), 2)  # blocks, where units are left out in blocks
    shares = np.full(len(effects), 1 / len(effects))
    counts = np.random.default_rng(seed).multinomial(drawn, shares, n_resamples)
    means = counts @ effects / drawn
    variance = (counts @ effects**2 / drawn - means**2) / (drawn - 1)
    error = np.sqrt(np.maximum(variance, 1e-24))
    reach = pilot.reach_at(n_units, error * math.sqrt(n_units / noise.units), alpha)
    return float((np.abs(means + delta) > reach * error).mean())


@dataclass(frozen=True)
class UnitNoise:
    """What each unit of a pilot does to a difference: a mean over units, whose `effects` are 0 on average."""

    effects: Floats  # [units or blocks of units]
    units: int
    freedom: float  # degrees of freedom: a few units may carry the noise

    @classmethod
    def of(cls, first: Metric, second: Metric, design: SamplingDesign) -> UnitNoise:
        """By leaving out one unit at a time."""
        found = leave_one_out(lambda counts: {"difference": _difference(first, second, counts)}, design)
        freedom = min(design.degrees_of_freedom, max(freedom_of_sizes(np.bincount(design.unit_of)), 1.0))
        if not freedom > 0:
            raise ValueError("one unit does not show how much others vary: there is no noise to plan with")
        # Few units spread too little when they are drawn again.
        wider = math.sqrt(len(found.left_out) * (len(found.left_out) - 1) * (freedom + 1) / freedom)
        shown = replace(found, unseen=np.zeros((1, 1)), grouped=True).degrees[0]
        return cls(wider * found.influences[:, 0], design.n_units, max(SHOWN_TAIL * min(freedom, shown), 1.0))

    @property
    def error(self) -> float:
        return float(self.effects.std() / math.sqrt(len(self.effects)))


def power_from_predictions(
    first: Metric,
    second: Metric,
    design: SamplingDesign,
    *,
    delta: float,
    alpha: float = 0.05,
    power: float = 0.8,
    n_resamples: int = 1000,
    seed: int = 0,
    unseen: float = 0.0,
    test_freedom: float = np.inf,
) -> PowerEstimate:
    """Units needed to see `delta`, from two models' stored predictions on the same samples.

    The normal formula gives the first guess; simulated test sets of growing size then decide, unless the
    guess is more than ten times the present size. `unseen` and `test_freedom` are what the test adds to the
    present standard error, and the degrees of freedom that it allows (`pair_errors`).
    """
    observed = float(_difference(first, second, np.ones((1, design.n_samples), dtype=np.int32))[0])
    if not math.isfinite(observed):
        raise ValueError("the metric has no value on these samples, so there is no difference to plan with")
    noise = UnitNoise.of(first, second, design)
    error = noise.error
    if not error > 0:
        why = "never differ on these samples" if error == 0 else "have no value without one of the units"
        raise ValueError(f"the two models {why}: there is no noise to plan with")
    # What the pilot did not show may be noise as well: the standard error is that of `compare`.
    wider = math.hypot(error, unseen) / error
    noise, error = replace(noise, effects=noise.effects * wider), error * wider
    pilot = Pilot(error, design.n_units, noise.freedom, unseen, test_freedom)
    plan = planned_units(pilot, delta, alpha=alpha, power=power)
    guess = units_for_error(error, design.n_units, delta, alpha=alpha, power=power)

    power_at = partial(
        simulated_power, noise, pilot, delta=delta, alpha=alpha, n_resamples=n_resamples, seed=seed
    )

    simulate = guess <= SIMULATE_UP_TO * design.n_units
    at_pilot = _smallest_simulated(power_at, power, guess) if simulate else plan.at_pilot
    # What the shape of the noise changes for the pilot's spread it changes for other spreads alike.
    shape = at_pilot / plan.at_pilot
    needed = max(2, math.ceil(plan.assured * shape))
    reach = pilot.reach_at(design.n_units, error, alpha) + t_quantile(pilot.freedom, 2 * power - 1)
    return PowerEstimate(
        units_needed=needed,
        units_needed_normal=guess,
        units_at_pilot=at_pilot,
        assurance_at_pilot=plan.assurance_at_pilot,
        units_low=max(2, math.ceil(plan.low * shape)),
        units_high=max(2, math.ceil(plan.high * shape)),
        samples_needed=math.ceil(needed * design.n_samples / design.n_units),
        present_units=design.n_units,
        present_power=power_at(design.n_units),
        detectable=float(error * reach),
        observed=observed,
        standard_error=error,
    )


def _smallest_simulated(power_at: Callable[[int], float], wanted: float, guess: int) -> int:
    """The smallest size (to about 2%) whose simulated power reaches `wanted`, searched around `guess`."""
    low, high = max(2, guess // 2), max(3, guess)
    while power_at(high) < wanted:
        low, high = high, math.ceil(high * 1.5)
    while low > 2 and power_at(low) >= wanted:
        low, high = max(2, low // 2), low
    return _between(low, high, power_at, wanted, parts=50)


def _difference(first: Metric, second: Metric, counts: NDArray[np.int32]) -> Floats:
    return np.asarray(first(counts), dtype=np.float64) - np.asarray(second(counts), dtype=np.float64)
