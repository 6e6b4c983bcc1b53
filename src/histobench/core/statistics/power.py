"""How many test images (or patients) it takes to see a difference between two models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.statistics.assurance import Pilot, planned_units
from histobench.core.statistics.effective_units import effective_freedom
from histobench.core.statistics.jackknife import t_quantile
from histobench.core.statistics.resampling import Metric, SamplingDesign, replicates

Floats = NDArray[np.float64]

#: Beyond this many times the present size the noise is as good as normal and simulation only costs time.
SIMULATE_UP_TO = 10
#: Units drawn in all simulated test sets of one size.
MOST_DRAWS = 40_000_000


@dataclass(frozen=True)
class PowerEstimate:
    """Units (images, or clusters such as patients) needed, and what the present test set can do.

    The present test set is a pilot: it knows its own noise only roughly. `units_needed` has the wanted power
    on average over what the true noise may be (its assurance); `units_low` to `units_high` is what would be
    needed over the middle 80% of that, and `units_at_pilot` if the pilot's noise were exactly the true one.
    """

    units_needed: int
    simulated: bool  # whether simulated test sets went into the numbers of units
    units_needed_normal: int  # by the normal formula, from the standard error alone
    units_at_pilot: int
    assurance_at_pilot: float  # the power that `units_at_pilot` really has, on average
    units_low: int
    units_high: int
    samples_needed: int  # images; with clusters: at the present mean cluster size
    present_units: int
    present_power: float  # chance that the present test set shows a difference of delta
    detectable: float  # the difference that the present test set shows with the wanted power
    observed: float  # the stored difference, first - second
    standard_error: float  # of the difference on the present test set


def mcnemar_samples(discordant: float, delta: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Samples for McNemar's test to see a difference `delta` in accuracy (Connor 1987).

    `discordant` is the share of samples that exactly one of the two models gets right; it cannot be
    smaller than delta.

    >>> mcnemar_samples(0.1, 0.05)
    312
    """
    _check(delta, alpha, power)
    if not delta <= discordant <= 1:
        raise ValueError(f"the discordant share {discordant:g} must lie between delta ({delta:g}) and 1")
    spread = special.ndtri(1 - alpha / 2) * discordant**0.5
    spread += special.ndtri(power) * (discordant - delta**2) ** 0.5
    return math.ceil(float(spread**2 / delta**2))


def mcnemar_power(discordant: float, delta: float, n_samples: int, *, alpha: float = 0.05) -> float:
    """The chance that McNemar's test on `n_samples` samples sees `delta` (inverse of `mcnemar_samples`)."""
    _check(delta, alpha, 0.5)
    spread = max(discordant - delta**2, 1e-300) ** 0.5
    reach = delta * n_samples**0.5 - special.ndtri(1 - alpha / 2) * discordant**0.5
    return float(special.ndtr(reach / spread))


def units_for_error(
    standard_error: float, n_units: int, delta: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Units for any metric whose standard error is `standard_error` at `n_units` and shrinks as 1/sqrt(n).

    >>> units_for_error(0.02, 100, 0.04)
    197
    """
    _check(delta, alpha, power)
    reach = float(special.ndtri(1 - alpha / 2) + special.ndtri(power))
    return max(2, math.ceil(n_units * (standard_error * reach / delta) ** 2))


def simulated_power(
    first: Metric,
    second: Metric,
    design: SamplingDesign,
    *,
    delta: float,
    n_units: int,
    alpha: float = 0.05,
    n_resamples: int = 1000,
    seed: int = 0,
) -> float:
    """The share of simulated test sets of `n_units` units on which a true difference `delta` shows.

    Test sets are drawn from the stored predictions; the observed difference is taken out and `delta` put
    in, so only the noise comes from the data. A difference shows when it exceeds Student's quantile times
    its standard error, which varies from one test set to the next as the degrees of freedom make it.
    """
    _check(delta, alpha, 0.5)
    observed = _difference(first, second, np.ones((1, design.n_samples), dtype=np.int32))[0]
    noise = replicates(
        lambda counts: _difference(first, second, counts),
        design,
        n_resamples=n_resamples,
        seed=seed,
        n_units=n_units,
    )
    noise = noise[np.isfinite(noise)]
    if len(noise) < 2:
        return 0.0
    pilot = _pilot(1.0, design)
    noise = (noise - observed) * _small_sample(pilot.freedom)
    freedom = pilot.freedom_at(n_units)
    varies = np.sqrt(np.random.default_rng([seed, 1]).chisquare(freedom, len(noise)) / freedom)
    shown = np.abs(noise + delta) > t_quantile(freedom, 1 - alpha) * noise.std(ddof=1) * varies
    return float(shown.mean())


def _pilot(standard_error: float, design: SamplingDesign) -> Pilot:
    freedom = min(design.degrees_of_freedom, effective_freedom(design))
    return Pilot(standard_error, design.n_units, freedom)


def _small_sample(freedom: float) -> float:
    """Resamples of few units spread too little, by this factor."""
    return math.sqrt((freedom + 1) / freedom)


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
) -> PowerEstimate:
    """Units needed to see `delta`, from two models' stored predictions on the same samples.

    The normal formula gives the first guess; simulated test sets of growing size then decide, unless the
    guess is more than ten times the present size; what the pilot does not know of its own noise comes on top.
    Models that never differ leave no noise to learn from.
    """
    _check(delta, alpha, power)
    ones = np.ones((1, design.n_samples), dtype=np.int32)
    observed = float(_difference(first, second, ones)[0])
    if not math.isfinite(observed):
        raise ValueError("the metric has no value on these samples, so there is no difference to plan with")
    noise = replicates(
        lambda counts: _difference(first, second, counts), design, n_resamples=n_resamples, seed=seed
    )
    error = float(np.nanstd(noise, ddof=1))
    if not error > 0:
        raise ValueError("the two models never differ on these samples: there is no noise to plan with")
    pilot = _pilot(error, design)
    if not pilot.freedom > 0:
        raise ValueError("one unit does not show how much others vary: there is no noise to plan with")
    error *= _small_sample(pilot.freedom)
    pilot = _pilot(error, design)
    plan = planned_units(pilot, delta, alpha=alpha, power=power)
    guess = units_for_error(error, design.n_units, delta, alpha=alpha, power=power)

    # Large test sets need fewer simulations: the noise is closer to normal, and time is what they cost.
    n_simulated = int(min(n_resamples, max(500, MOST_DRAWS // guess)))

    def power_at(n_units: int) -> float:
        return simulated_power(
            first,
            second,
            design,
            delta=delta,
            n_units=n_units,
            alpha=alpha,
            n_resamples=n_simulated,
            seed=seed,
        )

    simulate = guess <= SIMULATE_UP_TO * design.n_units
    at_pilot = _smallest(power_at, power, guess) if simulate else plan.at_pilot
    # What the shape of the noise changes for the pilot's spread it changes for other spreads alike.
    shape = at_pilot / plan.at_pilot
    needed = max(2, math.ceil(plan.assured * shape))
    reach = t_quantile(pilot.freedom, 1 - alpha) + t_quantile(pilot.freedom, 2 * power - 1)
    return PowerEstimate(
        units_needed=needed,
        simulated=simulate,
        units_needed_normal=guess,
        units_at_pilot=at_pilot,
        assurance_at_pilot=plan.assurance_at_pilot,
        units_low=max(2, math.ceil(plan.low * shape)),
        units_high=max(2, math.ceil(plan.high * shape)),
        samples_needed=math.ceil(needed * design.n_samples / design.n_units),
        present_units=design.n_units,
        present_power=power_at(design.n_units),
        detectable=error * reach,
        observed=observed,
        standard_error=error,
    )


def _smallest(power_at: Callable[[int], float], wanted: float, guess: int) -> int:
    """The smallest size (to about 2%) whose simulated power reaches `wanted`, searched around `guess`."""
    low, high = max(2, guess // 2), max(3, guess)
    while power_at(high) < wanted:
        low, high = high, math.ceil(high * 1.5)
    while low > 2 and power_at(low) >= wanted:
        low, high = max(2, low // 2), low
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        if power_at(middle) >= wanted:
            high = middle
        else:
            low = middle
    return high


def _difference(first: Metric, second: Metric, counts: NDArray[np.int32]) -> Floats:
    return np.asarray(first(counts), dtype=np.float64) - np.asarray(second(counts), dtype=np.float64)


def _check(delta: float, alpha: float, power: float) -> None:
    if not delta > 0:
        raise ValueError(f"delta must be positive, not {delta:g}")
    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"alpha ({alpha:g}) and power ({power:g}) must lie between 0 and 1")
