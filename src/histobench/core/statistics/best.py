"""The winner: which models may be the best, and what the winner is worth after having been picked.

    best_set(pairs).members                    [m], holds the truly best model with probability `level`
    winner_value(found)                        its value and interval, corrected for having been picked

**The set of the best** is the leader and every model that the leader's simultaneous interval (max-t) does not
separate from it: whoever sees the intervals can check the set by eye. All intervals hold together with
probability `level`, so the set holds every truly best model with at least that probability.

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
from histobench.core.statistics.jackknife import FEWEST_DEGREES, LeaveOneOut, pair_errors, t_quantile
from histobench.core.statistics.simultaneous import (
    SimultaneousPairs,
    normal_draws,
    towards_equal_correlation,
)

Floats = NDArray[np.float64]
#: Repetitions of the contest.
REPETITIONS = 4000
#: How many standard errors of the difference the others are taken closer to the winner than they were
#: measured: for the value (less leaves it too high among equals, more takes off too much from a true
#: winner), and for the lower end of its interval.
AS_A_RULE, AT_WORST = 1.0, 2.0


@dataclass(frozen=True)
class BestSet:
    """Which models may be the best; `p_adjusted` [m] is that of the difference from the leader (max-t)."""

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


def best_set(pairs: SimultaneousPairs) -> BestSet:
    """The leader, and every model whose simultaneous interval against the leader includes 0.

    Without a statement about spread every model may be the best.
    """
    m = len(pairs.names)
    if m < 2 or not np.isfinite(pairs.critical):
        return BestSet(pairs.names, np.ones(m, dtype=bool), np.full(m, np.nan))
    # The leader is nowhere behind; of equals the first.
    behind = pairs.difference > 0 if pairs.lower_is_better else pairs.difference < 0
    leader = int(behind.sum(axis=1).argmin())
    return BestSet(pairs.names, ~pairs.better[leader], pairs.p_adjusted[leader])


def winner_value(
    found: LeaveOneOut,
    *,
    level: float = 0.95,
    lower_is_better: bool = False,
    seed: int = 0,
    picked: str | None = None,
    ordinary: tuple[float, float] | None = None,
) -> WinnerValue:
    """The winner's value and interval, on the scale of `found` (a logarithm of the odds suits shares).

    `picked` is the winner, where values next to the end of a scale do not tell it. `ordinary` is the interval
    that it has without having been picked. The one returned reaches at least as far, and on the side of the
    others as much further as having been picked asks for.
    """
    sign = -1.0 if lower_is_better else 1.0
    values = sign * found.values
    winner = int(np.nanargmax(values)) if picked is None else found.names.index(picked)
    name, measured = found.names[winner], float(found.values[winner])
    covariance = found.covariance()
    own = float(covariance[winner, winner]) ** 0.5
    if not found.freedom >= FEWEST_DEGREES or not np.isfinite(covariance).all():
        reason = "the units do not show how far the values vary"
        nothing = Interval(None, None, level, "corrected winner", reason=reason)
        return WinnerValue(name, measured, measured, nothing)
    m = len(values)
    blended, _ = towards_equal_correlation(covariance, m / (m + found.freedom)) if m > 1 else (covariance, 0)
    noise = normal_draws(blended, REPETITIONS, seed=seed)
    spread, highest = np.sqrt(np.diag(blended)), noise.max(axis=1)
    _, error = pair_errors(found)
    # Who wins by luck often also shows too little spread; those close to it know better.
    close = values[winner] - values <= AT_WORST * error[winner]
    own = max(own, float(np.diag(covariance)[close].mean()) ** 0.5)
    if own == 0:
        low, high = (None, None) if ordinary is None else ordinary
        why = "the units show no spread" if ordinary is None else None
        return WinnerValue(name, measured, measured, Interval(low, high, level, "corrected winner", 0, why))
    spread = np.where(spread > 0, spread, own)

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
    reach = t_quantile(found.freedom, level)
    half = reach * own
    # How much further than an ordinary interval of the same level.
    further = max(float(np.quantile(inflated, (1 + level) / 2)) / reach, 1.0)
    if ordinary is None:
        down = up = half
    else:
        down, up = np.abs(np.array(ordinary)[:: 1 if sign > 0 else -1] - measured).tolist()
    lower = values[winner] - further * max(down, half)
    ends = sorted((sign * lower, sign * (values[winner] + max(up, half))))
    return WinnerValue(
        name=name,
        measured=measured,
        value=float(sign * (values[winner] - max(float(excess(AS_A_RULE).mean()), 0.0) * own)),
        interval=Interval(ends[0], ends[1], level, "corrected winner"),
    )
