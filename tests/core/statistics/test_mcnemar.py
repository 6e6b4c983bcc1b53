"""McNemar's test against statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as reference

from histobench.statistics.tests import EXACT_BELOW, McNemar, mcnemar

COUNTS = st.integers(0, 200)


def from_counts(b: int, c: int) -> McNemar:
    return mcnemar([True] * b + [False] * c, [False] * b + [True] * c)


@given(COUNTS, COUNTS)
def test_it_is_statsmodels_exact_for_few_discordant_pairs(b: int, c: int) -> None:
    found, exact = from_counts(b, c), b + c < EXACT_BELOW
    assert found.method == ("exact" if exact else "chi2")
    if b + c > 0 and (exact or b != c):  # statsmodels' correction overshoots at equality: (0 - 1)^2, not 0
        judge = reference([[10, b], [c, 10]], exact=exact, correction=not exact)
        assert found.p_value == pytest.approx(judge.pvalue)


def test_correctness_is_turned_into_discordant_pairs() -> None:
    result = mcnemar([1, 1, 1, 0, 0], [1, 0, 0, 1, 0])
    assert (result.only_first, result.only_second) == (2, 1)


def test_no_discordant_pair_is_no_evidence() -> None:
    assert mcnemar([1, 0], [1, 0]).p_value == 1


@pytest.mark.slow
def test_on_null_data_it_rejects_at_most_5_percent() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(2000):
        difficulty = generator.beta(3, 1, 250)
        first, second = generator.random((2, 250)) < difficulty
        rejected += mcnemar(first, second).p_value <= 0.05
    assert 0.01 < rejected / 2000 <= 0.05
