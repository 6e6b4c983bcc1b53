"""The winner: which models may be the best, and what the winner is worth after having been picked.

    best_set(found).members                    [m], holds the truly best model with probability `level`
    winner_value(found)                        its value and interval, corrected for having been picked

**The set of the best** (multiple comparisons with the best, Hsu 1984): a model stays in as long as none of
the others is significantly better than it, by one-sided tests over the m - 1 others. Whichever model is
truly best is in the set with probability `level` (of several equally best ones: each of them).

**The winner's value.** The highest of m measured values is too high on average, as it had the luck to win.
How much depends on how close the others truly are, and that is known only within the error of measurement.
So the contest is repeated by drawing (a parametric bootstrap) among models that are each as close to the
winner as one standard error of the difference allows; what the winners of these repetitions have too much
is taken off. The lower end of the interval comes from repetitions with two standard errors; the upper end
is the winner's ordinary one, which picking can only make safer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from histobench.core.record_files import ArrayOf
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.jackknife import LeaveOneOut, t_p_value, t_quantile
from histobench.core.statistics.simultaneous import normal_draws, pair_errors, towards_equal_correlation

Floats = NDArray[np.float64]
#: Repetitions of the contest.
REPETITIONS = 4000
#: How many standard errors of the difference the others are taken closer to the winner than they were
#: measured: for the value (less leaves it too high among equals, more takes off too much from a true
#: winner), and for the lower end of its interval.
AS_A_RULE, AT_WORST = 1.0, 2.0


@dataclass(frozen=True)
class BestSet:
    """Which models may be the best: `p_adjusted` is the chance of so large a deficit if it were the best."""

    names: tuple[str, ...]
    members: Annotated[NDArray[np.bool_], ArrayOf(bool)]
    p_adjusted: Annotated[Floats, ArrayOf(float)]

    def listed(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(name for name, inside in zip(self.names, self.members, strict=True) if inside)


@dataclass(frozen=True)
class WinnerValue:
    """The model with the best measured value, and what it is worth."""

    name: str
    measured: float
    value: float  # corrected for having been picked
    interval: Interval


def best_set(found: LeaveOneOut, *, level: float = 0.95, lower_is_better: bool = False) -> BestSet:
    """The models that may be the best; without a statement about spread everyone may be."""
    difference, error = pair_errors(found)
    m = len(found.values)
    if not found.freedom > 0 or m < 2:
        return BestSet(found.names, np.ones(m, dtype=bool), np.full(m, np.nan))
    ahead = difference if lower_is_better else -difference  # [i, j]: how far j is ahead of i
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, ahead / error, 0.0)
    known = np.isfinite(t)
    t = np.where(known & ~np.eye(m, dtype=bool), t, -np.inf).max(axis=1)
    one_sided = np.where(t > 0, t_p_value(t, found.freedom) / 2, 1.0)
    p_adjusted = -np.expm1((m - 1) * np.log1p(-np.minimum(one_sided, 1 - 1e-16)))
    return BestSet(found.names, p_adjusted >= 1 - level, p_adjusted)


def winner_value(
    found: LeaveOneOut, *, level: float = 0.95, lower_is_better: bool = False, seed: int = 0
) -> WinnerValue:
    """The winner's value and interval, on the scale of `found` (a logarithm of the odds suits shares)."""
    sign = -1.0 if lower_is_better else 1.0
    values = sign * found.values
    winner = int(np.nanargmax(values))
    name, measured = found.names[winner], float(found.values[winner])
    covariance = found.covariance()
    own = float(covariance[winner, winner]) ** 0.5
    if not found.freedom > 0 or not np.isfinite(covariance).all() or own == 0:
        nothing = Interval(None, None, level, "corrected winner", reason="the units show no spread")
        return WinnerValue(name, measured, measured, nothing)
    m = len(values)
    blended, _ = towards_equal_correlation(covariance, m / (m + found.freedom)) if m > 1 else (covariance, 0)
    noise = normal_draws(blended, REPETITIONS, seed=seed)
    spread, highest = np.sqrt(np.diag(blended)), noise.max(axis=1)
    _, error = pair_errors(found)
    # Who wins by luck often also shows too little spread; those close to it know better.
    close = values[winner] - values <= AT_WORST * error[winner]
    own = max(own, float(np.diag(covariance)[close].mean()) ** 0.5)

    def excess(closer: float) -> Floats:
        """What winners of the repeated contest have too much, in standard errors."""
        true = np.minimum(values[winner], values + closer * error[winner])
        # Whoever stays below the winner's worst in every repetition wins none of them.
        able = np.flatnonzero(true + highest >= true[winner] + noise[winner].min())
        drawn = true[able, None] + noise[able]
        wins = drawn.argmax(axis=0)
        won = able[wins]
        return np.asarray((drawn[wins, np.arange(REPETITIONS)] - true[won]) / spread[won])

    tails = np.random.default_rng([seed, 1]).chisquare(found.freedom, REPETITIONS)
    inflated = excess(AT_WORST) * np.sqrt(found.freedom / tails)
    half = t_quantile(found.freedom, level) * own
    lower = values[winner] - max(float(np.quantile(inflated, (1 + level) / 2)) * own, half)
    ends = sorted((sign * lower, sign * (values[winner] + half)))
    return WinnerValue(
        name=name,
        measured=measured,
        value=float(sign * (values[winner] - max(float(excess(AS_A_RULE).mean()), 0.0) * own)),
        interval=Interval(ends[0], ends[1], level, "corrected winner"),
    )
