"""Two models over several datasets: the Bayesian signed-rank test with a region of practical equivalence.

Friedman's test asks whether ranks differ; it cannot say how likely it is that one model is the better
choice, nor that two are equivalent. The Bayesian signed-rank test (Benavoli, Corani, Demšar and Zaffalon
2017) can: the datasets are a sample of the datasets one might meet, their weights are uncertain (a
Dirichlet process with one further observation of "no difference" that weighs 0.5), and each weighting says
whether the typical difference, the mean of two datasets drawn by it, lies mostly below, within or above the
region [-rope, rope].

    signed_rank(differences, rope=0.01)        differences [n] of first - second, one for each dataset
    signed_ranks(scores, rope=0.01)            all pairs of columns of scores [datasets, m], NaN where missing
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
#: The weight of the further observation of no difference.
PRIOR = 0.5
#: Weightings that are drawn; a probability of 0.95 is met within 0.004.
DRAWS = 10_000


@dataclass(frozen=True)
class SignedRank:
    """Chances that the first model is better, equivalent (within the region) and worse; each adds up to 1.

    `better`, `equivalent`, `worse`: of datasets like these as a whole. `next_better`, `next_equivalent`,
    `next_worse`: on one further dataset of the kind, which varies more.
    """

    datasets: int
    better: float
    equivalent: float
    worse: float
    next_better: float
    next_equivalent: float
    next_worse: float

    def reversed(self) -> SignedRank:
        """The same seen from the second model."""
        return SignedRank(
            self.datasets,
            self.worse,
            self.equivalent,
            self.better,
            self.next_worse,
            self.next_equivalent,
            self.next_better,
        )


def signed_rank(differences: ArrayLike, *, rope: float = 0.01, seed: int = 0) -> SignedRank | None:
    """The chances from one difference for each dataset (NaN: not compared there); None without any."""
    each = np.asarray(differences, dtype=np.float64)
    each = each[np.isfinite(each)]
    if not rope >= 0:
        raise ValueError(f"the region of equivalence must not be negative, not {rope:g}")
    if len(each) == 0:
        return None
    # Values of 0.81 - 0.80 are to lie on the edge of a region of 0.01, not at random to one side of it.
    each = np.round(each, 12)
    return _chances(each[:, None], rope, seed)[0]


def signed_ranks(
    scores: ArrayLike, *, rope: float = 0.01, seed: int = 0, lower_is_better: bool = False
) -> list[list[SignedRank | None]]:
    """Every model against every other on the datasets that both were run on; None on the diagonal."""
    values = np.asarray(scores, dtype=np.float64) * (-1.0 if lower_is_better else 1.0)
    m = values.shape[1]
    found: list[list[SignedRank | None]] = [[None] * m for _ in range(m)]
    first, second = np.triu_indices(m, 1)
    differences = np.round(values[:, first] - values[:, second], 12)
    present = np.isfinite(differences)
    for pattern in np.unique(present, axis=1).T:
        pairs = np.flatnonzero((present == pattern[:, None]).all(axis=0))
        if not pattern.any():
            continue
        for pair, chances in zip(pairs, _chances(differences[pattern][:, pairs], rope, seed), strict=True):
            found[first[pair]][second[pair]] = chances
            found[second[pair]][first[pair]] = chances.reversed()
    return found


def _chances(differences: Floats, rope: float, seed: int) -> list[SignedRank]:
    """For each column of differences [n, pairs]."""
    n, n_pairs = differences.shape
    rows = np.concatenate([np.zeros((1, n_pairs)), differences])
    i, j = np.triu_indices(n + 1)
    sums = rows[i] + rows[j]
    products = _products(n, seed)
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
def _products(n: int, seed: int) -> Floats:
    """Weights of all pairs of observations [draws, pairs]; two different ones count in both orders."""
    weights = np.random.default_rng(seed).dirichlet(np.r_[PRIOR, np.ones(n)], DRAWS)
    i, j = np.triu_indices(n + 1)
    return np.asarray(weights[:, i] * weights[:, j] * np.where(i == j, 1.0, 2.0))
