"""McNemar's test: do two classifiers err on the same samples equally often?

Samples in clusters (images of one patient) are not independent. Their clustered form adds up, within each
cluster, the samples that only the first gets right less those that only the second does. Between equal
classifiers each of these sums D could as well be reversed. Up to `ASYMPTOTIC_FROM` clusters that is the
sign-flip test, which cannot fall below the sign test; from there on Obuchowski's (1998) statistic,
z^2 = (sum of D)^2 / (sum of D^2), which is the same for many clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from histobench.core.statistics.sign_flip import sign_flip_p_values

#: Below this many discordant pairs the chi-squared approximation is not trusted.
EXACT_BELOW = 25
#: From this many clusters on the clustered test is taken from the chi-squared distribution.
ASYMPTOTIC_FROM = 200


@dataclass(frozen=True)
class McNemar:
    """Discordant pairs and the two-sided p-value."""

    only_first: int  # samples that only the first classifier gets right
    only_second: int
    p_value: float
    method: str  # "exact", "chi2" (with continuity correction), "mid-p" or "clustered"

    @property
    def n_discordant(self) -> int:
        """How many samples exactly one of the two gets right."""
        return self.only_first + self.only_second


def mcnemar(first_correct: ArrayLike, second_correct: ArrayLike, *, method: str = "auto") -> McNemar:
    """The test on per-sample correctness.

    `auto` is the exact binomial test below 25 discordant pairs and the chi-squared test with continuity
    correction from there on; `mid-p` is the exact test with half the weight on the observed outcome,
    less conservative than `exact`.

    >>> mcnemar([1, 1, 1, 1, 0], [0, 0, 0, 0, 0]).p_value
    0.125
    """
    first, second = np.asarray(first_correct, dtype=bool), np.asarray(second_correct, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"both classifiers need the same samples: {first.shape} and {second.shape}")
    return mcnemar_from_counts(int((first & ~second).sum()), int((~first & second).sum()), method=method)


def mcnemar_from_counts(only_first: int, only_second: int, *, method: str = "auto") -> McNemar:
    """The test from the two discordant counts."""
    if method == "auto":
        method = "exact" if only_first + only_second < EXACT_BELOW else "chi2"
    p_value = mcnemar_p_values([only_first], [only_second], method=method)
    return McNemar(only_first, only_second, float(p_value[0]), method)


def mcnemar_p_values(
    only_first: ArrayLike, only_second: ArrayLike, *, method: str = "auto"
) -> NDArray[np.float64]:
    """The p-values of many tests at once, from their discordant counts.

    >>> mcnemar_p_values([4, 0], [0, 0]).tolist()
    [0.125, 1.0]
    """
    if method not in ("auto", "exact", "chi2", "mid-p"):
        raise ValueError(f"unknown method {method!r}; known: auto, exact, chi2, mid-p")
    first, second = np.asarray(only_first, dtype=np.int64), np.asarray(only_second, dtype=np.int64)
    discordant, fewer = first + second, np.minimum(first, second)
    approximate = discordant >= EXACT_BELOW if method == "auto" else np.full(first.shape, method == "chi2")
    excess = np.maximum(np.abs(first - second) - 1, 0)
    p_values = np.ones(first.shape)
    some = approximate & (discordant > 0)
    p_values[some] = special.chdtrc(1, excess[some] ** 2 / discordant[some])
    some = ~approximate & (discordant > 0)
    p_values[some] = 2 * special.bdtr(fewer[some], discordant[some], 0.5)
    if method == "mid-p":
        p_values[some] -= _chance(fewer[some], discordant[some])
    return np.minimum(p_values, 1.0)


def clustered_mcnemar(
    first_correct: ArrayLike, second_correct: ArrayLike, clusters: Sequence[object]
) -> McNemar:
    """The test for samples in clusters.

    >>> first, second = [1, 1, 1, 1, 0, 1], [0, 0, 1, 0, 0, 1]
    >>> clustered_mcnemar(first, second, ["p", "p", "p", "q", "q", "r"]).p_value
    0.5
    """
    right = np.stack([np.asarray(first_correct, dtype=bool), np.asarray(second_correct, dtype=bool)])
    only_first, only_second = (int((right[k] & ~right[1 - k]).sum()) for k in (0, 1))
    p_value = clustered_mcnemar_p_values(right, clusters)[0, 1]
    return McNemar(only_first, only_second, float(p_value), "clustered")


def clustered_mcnemar_p_values(
    correct: ArrayLike, clusters: Sequence[object] | ArrayLike
) -> NDArray[np.float64]:
    """The p-values of all pairs [m, m] of classifiers with correctness [m, n]."""
    right = np.asarray(correct, dtype=np.float64)
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums = np.stack([np.bincount(codes, row).astype(np.float64) for row in right])
    if sums.shape[1] < ASYMPTOTIC_FROM:
        first, second = np.triu_indices(len(right), 1)
        p_values = np.ones((len(right), len(right)))
        p_values[first, second] = sign_flip_p_values((sums[first] - sums[second]).T)
        return np.minimum(p_values, p_values.T)
    products = sums @ sums.T
    squares = np.diag(products)[:, None] + np.diag(products)[None, :] - 2 * products
    total = sums.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(squares > 0, (total[:, None] - total[None, :]) ** 2 / squares, 0.0)
    return np.asarray(special.chdtrc(1, statistic), dtype=np.float64)


def _chance(heads: NDArray[np.int64], coins: NDArray[np.int64]) -> NDArray[np.float64]:
    """That as many of a number of coins show heads."""
    ways = special.gammaln(coins + 1.0) - special.gammaln(heads + 1.0) - special.gammaln(coins - heads + 1.0)
    return np.asarray(np.exp(ways - coins * np.log(2.0)), dtype=np.float64)
