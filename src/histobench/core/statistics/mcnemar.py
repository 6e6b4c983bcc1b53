"""McNemar's test: do two classifiers err on the same samples equally often?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

#: Below this many discordant pairs the chi-squared approximation is not trusted.
EXACT_BELOW = 25


@dataclass(frozen=True)
class McNemar:
    """Discordant pairs and the two-sided p-value."""

    only_first: int  # samples that only the first classifier gets right
    only_second: int
    p_value: float
    method: str  # "exact", "chi2" (with continuity correction) or "mid-p"

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
    discordant = only_first + only_second
    if method == "auto":
        method = "exact" if discordant < EXACT_BELOW else "chi2"
    if method not in ("exact", "chi2", "mid-p"):
        raise ValueError(f"unknown method {method!r}; known: auto, exact, chi2, mid-p")
    if discordant == 0:
        return McNemar(0, 0, 1.0, method)
    fewer = min(only_first, only_second)
    if method == "chi2":
        excess = max(abs(only_first - only_second) - 1, 0)
        p_value = float(stats.chi2.sf(excess**2 / discordant, 1))
    else:
        p_value = float(2 * stats.binom.cdf(fewer, discordant, 0.5))
        if method == "mid-p":
            p_value -= float(stats.binom.pmf(fewer, discordant, 0.5))
    return McNemar(only_first, only_second, min(1.0, p_value), method)
