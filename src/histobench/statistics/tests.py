"""Paired tests over tasks, splits and datasets; Holm's correction; agreement."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import ROUNDING, Floats, t_p_value, t_quantile, wilson_bounds


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values in the order given; NaN (no test) stays NaN and does not count as a test."""
    raw = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * np.arange(len(order), 0, -1)))
    return adjusted


@dataclass(frozen=True)
class MeanOverSplits:
    """A mean over splits with its interval, and the two-sided p-value of "it is 0"."""

    mean: float
    low: float
    high: float
    p_value: float


def corrected_resampled_t(values: ArrayLike, *, test_to_train: float, level: float = 0.95) -> MeanOverSplits:
    """Nadeau and Bengio's (2003) corrected resampled t test of values [J], one of each split.

    Training sets overlap, so the variance of the mean is (1/J + test size / training size) times that of the
    values, not 1/J times. Where the splits do not differ there is no interval.
    """
    each = np.asarray(values, dtype=np.float64)
    each = each[np.isfinite(each)]
    if len(each) < 2:
        mean = float(each.mean()) if len(each) else float("nan")
        return MeanOverSplits(mean, float("nan"), float("nan"), float("nan"))
    mean, freedom = float(each.mean()), len(each) - 1.0
    error = float(np.sqrt((1 / len(each) + test_to_train) * each.var(ddof=1)))
    if error <= ROUNDING * float(np.abs(each).max()):  # splits that all agree do not show any spread
        return MeanOverSplits(mean, float("nan"), float("nan"), 1.0 if mean == 0 else float("nan"))
    reach = float(t_quantile(freedom, level)) * error
    return MeanOverSplits(mean, mean - reach, mean + reach, float(t_p_value(mean / error, freedom)))


#: The weight of the further observation of no difference.
PRIOR = 0.5
#: Weightings that are drawn; a probability of 0.95 is met within 0.004.
DRAWS = 10_000


@dataclass(frozen=True)
class SignedRank:
    """Chances that the first model is better, equivalent (within the region) and worse; each adds up to 1.

    Of datasets like these as a whole; `next_`: on one further dataset of the kind, which varies more.
    """

    datasets: int
    better: float
    equivalent: float
    worse: float
    next_better: float
    next_equivalent: float
    next_worse: float

    def reversed(self) -> SignedRank:
        whole = self.worse, self.equivalent, self.better
        return SignedRank(self.datasets, *whole, self.next_worse, self.next_equivalent, self.next_better)


def signed_ranks(
    scores: ArrayLike, *, rope: float = 0.01, lower_is_better: bool = False
) -> list[list[SignedRank | None]]:
    """Every model against every other on the datasets that both were run on; None on the diagonal."""
    values = np.asarray(scores, dtype=np.float64) * (-1.0 if lower_is_better else 1.0)
    m = values.shape[1]
    found: list[list[SignedRank | None]] = [[None] * m for _ in range(m)]
    first, second = np.triu_indices(m, 1)
    # Values of 0.81 - 0.80 are to lie on the edge of a region of 0.01, not at random to one side of it.
    differences = np.round(values[:, first] - values[:, second], 12)
    present = np.isfinite(differences)
    for pattern in np.unique(present, axis=1).T:
        pairs = np.flatnonzero((present == pattern[:, None]).all(axis=0))
        if not pattern.any():
            continue
        for pair, chances in zip(pairs, _chances(differences[pattern][:, pairs], rope), strict=True):
            found[first[pair]][second[pair]] = chances
            found[second[pair]][first[pair]] = chances.reversed()
    return found


def _chances(differences: Floats, rope: float) -> list[SignedRank]:
    n, n_pairs = differences.shape
    rows = np.concatenate([np.zeros((1, n_pairs)), differences])
    i, j = np.triu_indices(n + 1)
    sums = rows[i] + rows[j]
    products = _products(n)
    above = products @ _step(sums - 2 * rope)
    below = products @ _step(-sums - 2 * rope)
    within = 1 - above - below
    if rope == 0:  # nothing lies within a region without width
        within = np.full_like(within, -np.inf)
    # Which of the three is largest, the first of equals (`argmax` along so short an axis takes longer).
    is_above = (above >= within) & (above >= below)
    is_within = ~is_above & (within >= below)
    shares = [share.mean(axis=0) for share in (is_above, is_within, ~(is_above | is_within))]
    ahead, behind = _step(differences - rope).sum(axis=0), _step(-differences - rope).sum(axis=0)
    if rope == 0:
        ahead, behind = ahead + PRIOR / 2, behind + PRIOR / 2
    ahead, behind = ahead / (n + PRIOR), behind / (n + PRIOR)
    return [
        SignedRank(n, *(float(share[k]) for share in shares), *map(float, (a, 1 - a - b, b)))
        for k, (a, b) in enumerate(zip(ahead, behind, strict=True))
    ]


def _step(values: Floats) -> Floats:
    """1 above 0, half at 0: what lies on the edge counts half."""
    return np.heaviside(values, 0.5)


@lru_cache(maxsize=32)
def _products(n: int) -> Floats:
    """Weights of all pairs of observations [draws, pairs]; two different ones count in both orders."""
    weights = np.random.default_rng(0).dirichlet(np.r_[PRIOR, np.ones(n)], DRAWS)
    i, j = np.triu_indices(n + 1)
    return np.asarray(weights[:, i] * weights[:, j] * np.where(i == j, 1.0, 2.0))


@dataclass(frozen=True)
class Agreement:
    """`n` things with two labels each; `kappa` is None where chance alone would agree on all of them."""

    n: int
    observed: float
    by_chance: float
    kappa: float | None
    standard_error: float | None
    interval: Interval


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable], *, level: float = 0.95) -> Agreement:
    """Agreement of two lists of labels of the same things."""
    n = len(first)
    nothing = Interval(None, None, level, "kappa", 0, "no labels" if n == 0 else "only one label was used")
    if n == 0:
        return Agreement(0, 0.0, 0.0, None, None, nothing)
    known = {label: number for number, label in enumerate(dict.fromkeys([*first, *second]))}
    table = np.zeros((len(known), len(known)))
    for one, other in zip(first, second, strict=True):
        table[known[one], known[other]] += 1 / n
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    observed, chance = float(np.trace(table)), float(rows @ columns)
    if chance >= 1 - 1e-12:
        return Agreement(n, observed, chance, None, None, nothing)
    kappa = (observed - chance) / (1 - chance)
    same = (np.diag(table) * (1 - (rows + columns) * (1 - kappa)) ** 2).sum()
    # Of row i and column j it is the column's share of i and the row's share of j that count.
    crossed = table * (columns[:, None] + rows[None, :]) ** 2
    other = (1 - kappa) ** 2 * (crossed.sum() - np.trace(crossed))
    rest = (kappa - chance * (1 - kappa)) ** 2
    error = float(np.sqrt(max(same + other - rest, 0.0) / n) / (1 - chance))
    normal = float(scipy.special.ndtri((1 + level) / 2))
    reach = normal * error
    low, high = wilson_bounds(observed, n, normal)
    bounds = [(float(bound) - chance) / (1 - chance) for bound in (low, high)]
    interval = Interval(
        max(min(kappa - reach, bounds[0]), -1.0), min(max(kappa + reach, bounds[1]), 1.0), level, "kappa", 0
    )
    return Agreement(n, observed, chance, kappa, error, interval)
