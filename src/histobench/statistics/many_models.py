"""Many models at once: max-t intervals of all pairs, ranks, the set of the best, the winner, Friedman's test.

Al Mohamad et al. 2022; Mogstad, Romano, Shaikh and Wilhelm 2024; docs/explanation/statistics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import (
    SHARE_OF_UNSEEN,
    Floats,
    Ints,
    LeaveOneOut,
    pair_errors,
    pair_t,
    t_p_value,
    t_quantile,
)

#: Draws for the number of comparisons: a family-wise error of 0.05 is met within 0.003.
DRAWS = 4000


@dataclass(frozen=True)
class SimultaneousPairs:
    names: tuple[str, ...]
    difference: Floats
    error: Floats  # standard errors
    freedom: Floats  # degrees of freedom of each
    comparisons: float  # how many independent comparisons the pairs are worth
    lower_is_better: bool
    level: float = 0.95
    span: float = np.inf  # differences lie within -span and span

    def _bounds(self, level: float) -> tuple[Floats, Floats]:
        reach, span = t_quantile(self.freedom, level) * self.error, self.span
        return np.maximum(self.difference - reach, -span), np.minimum(self.difference + reach, span)

    @cached_property
    def _together(self) -> tuple[Floats, Floats]:
        return self._bounds(self.level ** (1 / self.comparisons))

    @property
    def low(self) -> Floats:
        return self._together[0]

    @property
    def high(self) -> Floats:
        return self._together[1]

    @cached_property
    def p_value(self) -> Floats:
        return t_p_value(pair_t(self.difference, self.error), self.freedom)

    @property
    def p_adjusted(self) -> Floats:
        """Below 1 - level exactly where the simultaneous interval excludes 0."""
        return np.asarray(-np.expm1(self.comparisons * np.log1p(-np.minimum(self.p_value, 1 - 1e-16))))

    def alone(self) -> tuple[Floats, Floats]:
        return self._bounds(self.level)

    @property
    def better(self) -> NDArray[np.bool_]:
        """Where the row is better than the column beyond chance."""
        return self.high < 0 if self.lower_is_better else self.low > 0


def simultaneous_pairs(
    found: LeaveOneOut, *, level: float = 0.95, lower_is_better: bool = False, span: float = np.inf
) -> SimultaneousPairs:
    """Intervals of all differences that hold together with probability `level`."""
    difference, error, freedom = pair_errors(found)
    least = float(np.min(found.degrees, initial=np.inf))
    comparisons = independent_comparisons(found.covariance, least, level=level)
    about = difference, error, freedom, comparisons, lower_is_better, level, span
    return SimultaneousPairs(found.names, *about)


def independent_comparisons(covariance: Floats, freedom: float, *, level: float = 0.95) -> float:
    """How many independent comparisons all pairs of m models are worth, between 1 and m (m - 1) / 2.

    Under a known covariance, from draws of the values. Few units know it badly: it is drawn towards that of
    equally correlated models, and the number towards that of all pairs (below three units per model, wholly).
    """
    m = len(covariance)
    pairs = max(m * (m - 1) / 2, 1.0)
    if m < 3 or not np.isfinite(covariance).all():
        return pairs
    weight = m / (m + freedom)
    all_of_it = min(1.0, 4 * weight)
    if all_of_it == 1:
        return pairs
    blended, residual = towards_equal_correlation(covariance, weight)
    if residual <= 0:
        return pairs
    spread = np.diag(blended)
    error = np.sqrt(np.maximum(spread[:, None] + spread[None, :] - 2 * blended, 0.0))
    # Twins have no difference that could be the largest.
    measured = np.diag(covariance)
    apart = measured[:, None] + measured[None, :] - 2 * covariance > 1e-9 * residual
    inverse = np.divide(1.0, error, out=np.zeros_like(error), where=apart & (error > 0))
    drawn = normal_draws(blended, DRAWS).astype(np.float32)
    inverse32 = inverse.astype(np.float32)
    largest = np.zeros(DRAWS, dtype=np.float32)
    for k in range(m - 1):
        distance = np.abs(drawn[k + 1 :] - drawn[k])
        distance *= inverse32[k, k + 1 :, None]
        np.maximum(largest, distance.max(axis=0), out=largest)
    tail = 2 * float(scipy.special.ndtr(-float(np.quantile(largest, level))))
    worth = min(max(np.log(level) / np.log1p(-min(tail, 1 - 1e-12)), 1.0), pairs)
    return float(worth + all_of_it * (pairs - worth))


def towards_equal_correlation(covariance: Floats, weight: float) -> tuple[Floats, float]:
    """(1 - weight) of it, the rest equally correlated models; and these models' own variance."""
    m = len(covariance)
    own = (np.trace(covariance) - covariance.sum() / m) / (m - 1)
    shared = max(float(np.trace(covariance)) / m - own, 0.0)
    equal = shared + own * np.eye(m)
    return (1 - weight) * covariance + weight * equal, float(own)


def normal_draws(covariance: Floats, n: int) -> Floats:
    """Draws [m, n] from the normal distribution with mean 0; the covariance may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(root @ _standard_normal(len(covariance), n))


@lru_cache(maxsize=8)
def _standard_normal(m: int, n: int) -> Floats:
    """The same draws serve every table of m models."""
    drawn: Floats = np.random.default_rng(0).standard_normal((m, n))
    drawn.flags.writeable = False
    return drawn


def rank_intervals(better: NDArray[np.bool_]) -> Ints:
    """[m, 2]: from 1 + how many are better to m - how many are worse, by `better` [m, m] (row, column)."""
    return np.stack((1 + better.sum(axis=0), len(better) - better.sum(axis=1)), axis=1).astype(np.int64)


#: Repetitions of the contest.
REPETITIONS = 4000
#: How many standard errors of the difference the others are taken closer to the winner than measured: for
#: the value, and for the lower end of its interval.
AS_A_RULE, AT_WORST = 1.0, 2.0
WINNER = "corrected winner"


@dataclass(frozen=True)
class WinnerValue:
    name: str
    measured: float
    value: float  # corrected for having been picked
    interval: Interval


def best_set(pairs: SimultaneousPairs) -> tuple[str, ...]:
    """The leader, and every model whose simultaneous interval against the leader includes 0."""
    # The leader is nowhere behind; of equals the first.
    behind = pairs.difference > 0 if pairs.lower_is_better else pairs.difference < 0
    worse = pairs.better[int(behind.sum(axis=1).argmin())]
    return tuple(name for name, shown in zip(pairs.names, worse, strict=True) if not shown)


def winner_value(
    found: LeaveOneOut,
    ordinary: Interval,
    *,
    lower_is_better: bool = False,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> WinnerValue:
    """The winner's value and interval, corrected for having been picked; `ordinary` is that without."""
    sign = -1.0 if lower_is_better else 1.0
    values = sign * found.values
    winner = int(np.nanargmax(values))
    name, measured, level = found.names[winner], float(found.values[winner]), ordinary.level
    covariance = found.covariance
    if ordinary.low is None or ordinary.high is None or not np.isfinite(covariance).all():
        nothing = Interval(None, None, level, WINNER, 0, ordinary.reason or "the value has no interval")
        return WinnerValue(name, measured, measured, nothing)
    m, freedom = len(values), float(found.degrees[winner])
    # What was not seen varies as well, for each model on its own.
    covariance = covariance + np.diag(SHARE_OF_UNSEEN * found.unseen_variance)
    blended, _ = towards_equal_correlation(covariance, m / (m + freedom)) if m > 1 else (covariance, 0)
    noise = normal_draws(blended, REPETITIONS)
    spread = np.sqrt(np.maximum(np.diag(blended), np.finfo(float).tiny))
    error = pair_errors(found)[1][winner]
    # The winner by chance often also shows too little spread; those close to it know better.
    close = values[winner] - values <= AT_WORST * error
    own = max(float(covariance[winner, winner]), float(np.diag(covariance)[close].mean())) ** 0.5

    def excess(closer: float) -> Floats:
        """What winners of the repeated contest have too much, in standard errors."""
        true = np.minimum(values[winner], values + closer * error)
        drawn = true[:, None] + noise
        won = drawn.argmax(axis=0)
        return np.asarray((drawn[won, np.arange(REPETITIONS)] - true[won]) / spread[won])

    tails = np.random.default_rng([0, 1]).chisquare(freedom, REPETITIONS)
    inflated = excess(AT_WORST) * np.sqrt(freedom / tails)
    # How much further than an ordinary interval of the same level.
    further = max(float(np.quantile(inflated, (1 + level) / 2)) / float(t_quantile(freedom, level)), 1.0)
    value = measured - sign * max(float(excess(AS_A_RULE).mean()), 0.0) * own
    low, high = ordinary.low, ordinary.high
    if lower_is_better:
        high = measured + further * (high - measured)
    else:
        low = measured - further * (measured - low)
    least, most = within
    return WinnerValue(
        name=name,
        measured=measured,
        value=float(np.clip(value, least, most)),
        interval=Interval(max(low, least), min(high, most), level, WINNER),
    )


@dataclass(frozen=True)
class Friedman:
    """Are the mean ranks more different than chance makes them?"""

    statistic: float  # chi-squared, corrected for ties
    p_value: float
    f_statistic: float  # Iman and Davenport's, less conservative with few datasets
    f_p_value: float


@dataclass(frozen=True)
class WinTieLoss:
    """On how many datasets row is shown to be better than column, neither is shown, or worse."""

    wins: NDArray[np.int64]  # [m, m]
    ties: NDArray[np.int64]
    losses: NDArray[np.int64]


def ranks(scores: ArrayLike, *, higher_is_better: bool = True) -> Floats:
    """Ranks within each dataset (row), 1 for the best, equal scores share their mean rank."""
    values = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    values = values if higher_is_better else -values
    better = values[:, None, :] > values[:, :, None]
    equal = values[:, None, :] == values[:, :, None]
    return np.asarray(better.sum(axis=2) + (equal.sum(axis=2) + 1) / 2, dtype=np.float64)


def friedman(scores: ArrayLike) -> Friedman:
    ranked = ranks(scores)
    n_datasets, n_models = ranked.shape
    spread = float(((ranked - (n_models + 1) / 2) ** 2).sum())
    if spread == 0:  # every dataset is one big tie
        return Friedman(0.0, 1.0, 0.0, 1.0)
    deviation = ranked.sum(axis=0) - n_datasets * (n_models + 1) / 2
    statistic = float((n_models - 1) * (deviation**2).sum() / spread)
    p_value = float(scipy.special.chdtrc(n_models - 1, statistic))
    rest = n_datasets * (n_models - 1) - statistic
    if rest <= 1e-9:
        # All datasets have the order of the first: F has no value, the chance of that is 1 / (m!)^(n - 1).
        chance = math.exp(-(n_datasets - 1) * math.lgamma(n_models + 1))
        return Friedman(statistic, p_value, float("inf"), chance)
    f_statistic = (n_datasets - 1) * statistic / rest
    f_p_value = float(scipy.special.fdtrc(n_models - 1, (n_models - 1) * (n_datasets - 1), f_statistic))
    return Friedman(statistic, p_value, f_statistic, f_p_value)


@lru_cache(maxsize=256)
def nemenyi_critical_difference(n_models: int, n_datasets: int, *, alpha: float = 0.05) -> float:
    """Mean ranks at least this far apart differ (Demšar 2006); studentized range with infinite freedom."""
    from scipy.stats import studentized_range  # imported late: it takes longer than most comparisons

    critical = float(studentized_range.ppf(1 - alpha, n_models, np.inf)) / 2**0.5
    return critical * _rank_error(n_models, n_datasets)


def nemenyi_p_values(average_ranks: ArrayLike, n_datasets: int) -> Floats:
    from scipy.stats import studentized_range

    average = np.asarray(average_ranks, dtype=np.float64)
    distance = np.abs(average[:, None] - average[None, :]) / _rank_error(len(average), n_datasets)
    p_values = studentized_range.sf(distance * np.sqrt(2), len(average), np.inf)
    return np.clip(np.asarray(p_values, dtype=np.float64), 0.0, 1.0)


def cliques(average_ranks: ArrayLike, critical_difference: float) -> list[tuple[int, ...]]:
    """The largest groups of models, best first, within which no two differ."""
    average = np.asarray(average_ranks, dtype=np.float64)
    order = np.argsort(average, kind="stable")
    found: list[tuple[int, ...]] = []
    last_end = 0
    for start in range(len(order)):
        end = start
        while end < len(order) and average[order[end]] - average[order[start]] < critical_difference:
            end += 1
        if end - start > 1 and end > last_end:
            found.append(tuple(int(index) for index in order[start:end]))
        last_end = max(last_end, end)
    return found


def win_tie_loss(better: ArrayLike) -> WinTieLoss:
    """Counts from `better` [datasets, m, m]: 1 row is shown to be better, -1 worse, 0 neither; else NaN."""
    shown = np.asarray(better, dtype=np.float64)
    return WinTieLoss(*((shown == outcome).sum(axis=0) for outcome in (1, 0, -1)))


def complete_block(present: ArrayLike) -> tuple[list[int], list[int]]:
    """Datasets (rows) and models (columns) of a table with gaps that make a table without gaps.

    The row or column with the largest share of gaps is taken out until none is left, of equals a dataset
    before a model, the last one first.

    >>> complete_block([[True, True, True], [True, True, True], [True, False, False]])
    ([0, 1], [0, 1, 2])
    """
    there = np.asarray(present, dtype=bool)
    rows, columns = list(range(there.shape[0])), list(range(there.shape[1]))
    while rows and columns and not (block := there[np.ix_(rows, columns)]).all():
        gaps_of_row, gaps_of_column = (~block).mean(axis=1), (~block).mean(axis=0)
        if gaps_of_row.max() >= gaps_of_column.max():
            rows.pop(int(np.flatnonzero(gaps_of_row == gaps_of_row.max())[-1]))
        else:
            columns.pop(int(np.flatnonzero(gaps_of_column == gaps_of_column.max())[-1]))
    return (rows, columns) if rows and columns else ([], [])


def _rank_error(n_models: int, n_datasets: int) -> float:
    return float(np.sqrt(n_models * (n_models + 1) / (6 * n_datasets)))
