"""All pairs of models at once: intervals of which all hold together, and the ranks that follow from them.

Every pair has its jackknife t statistic. The critical value is that of the largest of them all (max-t), so
the chance that *any* of the intervals misses its true difference is at most 1 - level; in particular a
model may be looked up because it came first. A rank interval counts who is significantly better and
significantly worse (Al Mohamad et al. 2022; Mogstad, Romano, Shaikh and Wilhelm 2024), and all of them hold
together as well.

    pairs = simultaneous_pairs(found)          found: LeaveOneOut of one metric of m models on the same units
    pairs.low, pairs.high [m, m]               row minus column
    rank_intervals(pairs.better)               [m, 2]

How the largest t is distributed: under a known covariance by drawing from the normal distribution of the
values, which says how many *independent* comparisons the pairs are worth. With few units each pair's own
standard error is uncertain, pairs help each other less and correlations are known badly; so the covariance
is drawn towards that of equally correlated models, and the number of comparisons towards that of all pairs
(all of it below three units for each model). Student's quantile for that number of comparisons (Šidák) is
the critical value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.record_files import ArrayOf
from histobench.core.statistics.jackknife import (
    FEWEST_DEGREES,
    LeaveOneOut,
    pair_errors,
    t_p_value,
    t_quantile,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
StoredFloats = Annotated[Floats, ArrayOf(float)]
#: Draws for the number of comparisons: a family-wise error of 0.05 is met within 0.003.
DRAWS = 4000


@dataclass(frozen=True)
class SimultaneousPairs:
    """Every model against every other, [m, m]: row minus column, NaN where there is no number.

    `error` [i, j] is the standard error of the lower bound of i - j, and so of the upper bound of j - i.
    """

    names: tuple[str, ...]
    difference: StoredFloats
    error: StoredFloats
    critical: float  # standard errors to either side
    comparisons: float  # how many independent comparisons the pairs are worth
    p_adjusted: StoredFloats  # below 1 - level exactly where the interval excludes 0
    lower_is_better: bool
    level: float = 0.95
    span: float = np.inf  # differences lie within -span and span
    freedom: float = np.nan  # degrees of freedom of the standard errors

    @property
    def low(self) -> Floats:
        """Lower ends of the simultaneous intervals."""
        return np.maximum(self.difference - self.critical * self.error, -self.span)

    @property
    def high(self) -> Floats:
        """Upper ends of the simultaneous intervals."""
        return np.minimum(self.difference + self.critical * self.error.T, self.span)

    def alone(self) -> tuple[Floats, Floats, Floats]:
        """Lower ends, upper ends and p-values of each pair as if it were the only one."""
        if not np.isfinite(self.critical):
            return self.error, self.error, self.error
        reach = t_quantile(self.freedom, self.level)
        return (
            np.maximum(self.difference - reach * self.error, -self.span),
            np.minimum(self.difference + reach * self.error.T, self.span),
            t_p_value(_t(self.difference, self.error), self.freedom),
        )

    @property
    def better(self) -> NDArray[np.bool_]:
        """Where the row is better than the column beyond chance."""
        return self.high < 0 if self.lower_is_better else self.low > 0


def simultaneous_pairs(
    found: LeaveOneOut,
    *,
    level: float = 0.95,
    lower_is_better: bool = False,
    floor: Floats | None = None,
    span: float = np.inf,
) -> SimultaneousPairs:
    """Intervals of all pairwise differences that hold together with probability `level`.

    `floor` and `span` as for `jackknife.differences`.
    """
    m, freedom = len(found.values), found.freedom
    difference, error = pair_errors(found, level=level, floor=floor)
    if not freedom >= FEWEST_DEGREES or m < 2:
        nothing = np.full((m, m), np.nan)
        return SimultaneousPairs(
            found.names, difference, nothing, np.nan, m * (m - 1) / 2, nothing, lower_is_better, level, span
        )
    comparisons = independent_comparisons(found.covariance(), freedom, level=level)
    alpha = 1 - level ** (1 / comparisons)
    p_value = t_p_value(_t(difference, error), freedom)
    p_adjusted = -np.expm1(comparisons * np.log1p(-np.minimum(p_value, 1 - 1e-16)))
    np.fill_diagonal(p_adjusted, 1.0)
    return SimultaneousPairs(
        names=found.names,
        difference=difference,
        error=error,
        critical=t_quantile(freedom, 1 - alpha),
        comparisons=comparisons,
        p_adjusted=p_adjusted,
        lower_is_better=lower_is_better,
        level=level,
        span=span,
        freedom=freedom,
    )


def _t(difference: Floats, error: Floats) -> Floats:
    """Differences in standard errors of the bound on the side of 0; NaN without one."""
    towards = np.where(difference > 0, error, error.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, difference / towards)
    return np.asarray(np.where(np.isnan(towards), np.nan, t))


def independent_comparisons(covariance: Floats, freedom: float, *, level: float = 0.95) -> float:
    """How many independent comparisons all pairs of m models are worth, between 1 and m (m - 1) / 2.

    >>> round(independent_comparisons(np.eye(2), 50.0), 1)
    1.0
    """
    m = len(covariance)
    pairs = m * (m - 1) / 2
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
    drawn = normal_draws(blended, DRAWS, seed=0).astype(np.float32)
    inverse32 = inverse.astype(np.float32)
    largest = np.zeros(DRAWS, dtype=np.float32)
    for k in range(m - 1):
        distance = np.abs(drawn[k + 1 :] - drawn[k])
        distance *= inverse32[k, k + 1 :, None]
        np.maximum(largest, distance.max(axis=0), out=largest)
    tail = 2 * float(special.ndtr(-float(np.quantile(largest, level))))
    worth = min(max(np.log(level) / np.log1p(-tail), 1.0), pairs)
    return float(worth + all_of_it * (pairs - worth))


def towards_equal_correlation(covariance: Floats, weight: float) -> tuple[Floats, float]:
    """(1 - weight) of the covariance, the rest equally correlated models; and these models' own variance."""
    m = len(covariance)
    own = (np.trace(covariance) - covariance.sum() / m) / (m - 1)
    shared = max(float(np.trace(covariance)) / m - own, 0.0)
    equal = shared + own * np.eye(m)
    return (1 - weight) * covariance + weight * equal, float(own)


def normal_draws(covariance: Floats, n: int, *, seed: int) -> Floats:
    """Draws [m, n] from the normal distribution with mean 0; the covariance may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn: Floats = root @ _standard_normal(len(covariance), n, seed)
    return drawn


@lru_cache(maxsize=8)
def _standard_normal(m: int, n: int, seed: int) -> Floats:
    """The same draws serve every table of m models."""
    drawn: Floats = np.random.default_rng(seed).standard_normal((m, n))
    drawn.flags.writeable = False
    return drawn


def rank_intervals(better: NDArray[np.bool_]) -> Ints:
    """[m, 2]: from 1 + how many are better to m - how many are worse, by `better` [m, m] (row than column).

    >>> rank_intervals(np.array([[False, True, True], [False, False, False], [False, False, False]])).tolist()
    [[1, 1], [2, 3], [2, 3]]
    """
    from_ = 1 + better.sum(axis=0)
    to = len(better) - better.sum(axis=1)
    return np.stack([from_, to], axis=1).astype(np.int64)
