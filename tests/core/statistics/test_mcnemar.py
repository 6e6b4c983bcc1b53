"""McNemar's test against statsmodels and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference

from histobench.statistics.tests import mcnemar, mcnemar_from_counts

COUNTS = st.integers(0, 200)


@given(COUNTS, COUNTS)
def test_exact_and_chi2_are_statsmodels(b: int, c: int) -> None:
    table = [[10, b], [c, 10]]
    if b + c > 0:
        assert mcnemar_from_counts(b, c, method="exact").p_value == pytest.approx(
            reference(table, exact=True).pvalue
        )
        if b != c:  # statsmodels' correction overshoots at equality: (0 - 1)^2 instead of 0
            assert mcnemar_from_counts(b, c, method="chi2").p_value == pytest.approx(
                reference(table, exact=False, correction=True).pvalue
            )


@given(COUNTS, COUNTS)
def test_exact_is_scipys_binomial_test(b: int, c: int) -> None:
    if b + c > 0:
        assert mcnemar_from_counts(b, c, method="exact").p_value == pytest.approx(
            stats.binomtest(b, b + c, 0.5).pvalue
        )


@given(COUNTS, COUNTS)
def test_mid_p_is_the_exact_p_value_less_the_probability_of_the_outcome(b: int, c: int) -> None:
    exact, mid = (mcnemar_from_counts(b, c, method=m).p_value for m in ("exact", "mid-p"))
    if b != c:
        assert mid == pytest.approx(exact - stats.binom.pmf(b, b + c, 0.5))
    assert 0 <= mid <= exact


def test_few_discordant_pairs_are_tested_exactly() -> None:
    assert mcnemar_from_counts(20, 4).method == "exact"
    assert mcnemar_from_counts(20, 5).method == "chi2"


def test_correctness_is_turned_into_discordant_pairs() -> None:
    result = mcnemar([1, 1, 1, 0, 0], [1, 0, 0, 1, 0])
    assert (result.only_first, result.only_second) == (2, 1)


def test_no_discordant_pair_is_no_evidence() -> None:
    assert mcnemar([1, 0], [1, 0]).p_value == 1


def test_different_samples_and_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="same samples"):
        mcnemar([1, 0], [1])
    with pytest.raises(ValueError, match="unknown method 'fisher'"):
        mcnemar_from_counts(1, 2, method="fisher")


@pytest.mark.slow
def test_on_null_data_it_rejects_at_most_5_percent() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(2000):
        difficulty = generator.beta(3, 1, 250)
        first, second = generator.random((2, 250)) < difficulty
        rejected += mcnemar(first, second).p_value <= 0.05
    assert 0.01 < rejected / 2000 <= 0.05
