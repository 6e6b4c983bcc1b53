"""Holm's correction against statsmodels and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from builders import examples
from histobench.statistics.tests import holm

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(P_VALUES)
def test_adjusted_p_values_are_statsmodels(p_values: list[float]) -> None:
    np.testing.assert_allclose(holm(p_values), multipletests(p_values, method="holm")[1])


@given(P_VALUES)
def test_tests_that_were_not_made_do_not_count(p_values: list[float]) -> None:
    with_gaps = np.repeat(p_values, 2)
    with_gaps[1::2] = np.nan
    np.testing.assert_array_equal(holm(with_gaps)[::2], holm(p_values))
    assert np.isnan(holm(with_gaps)[1::2]).all()


def test_no_tests_give_no_values() -> None:
    assert holm([]).tolist() == []


def false_claims(correlation: float) -> float:
    """How often a table of ten tests without any true difference makes a claim."""
    generator = np.random.default_rng(0)
    shared = generator.normal(size=(20_000, 1)) * correlation**0.5
    z = shared + generator.normal(size=(20_000, 10)) * (1 - correlation) ** 0.5
    return float(np.mean([(holm(row) <= 0.05).any() for row in 2 * stats.norm.sf(np.abs(z))]))


@pytest.mark.slow
def test_the_chance_of_any_false_claim_is_that_of_theory_for_independent_tests() -> None:
    assert false_claims(0.0) == pytest.approx(1 - (1 - 0.05 / 10) ** 10, abs=0.004)


@pytest.mark.slow
def test_dependent_tests_make_fewer_false_claims() -> None:
    assert 0.005 < false_claims(0.8) <= 0.05
