"""Ranks, Friedman's test and Nemenyi's critical difference against scipy and published tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from histobench.statistics.many_models import (
    cliques,
    complete_block,
    friedman,
    nemenyi_critical_difference,
    nemenyi_p_values,
    ranks,
    win_tie_loss,
)

#: Critical values q of the two-tailed Nemenyi test as printed by Demšar (2006), table 5(a).
DEMSAR = {
    0.05: (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    0.10: (1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920),
}


def test_the_best_has_rank_one_whichever_way_is_better() -> None:
    scores = [[0.9, 0.7, 0.8], [0.6, 0.5, 0.7]]
    assert ranks(scores).tolist() == [[1, 3, 2], [2, 3, 1]]
    assert ranks(scores, higher_is_better=False).tolist() == [[3, 1, 2], [2, 1, 3]]


@given(st.integers(2, 12), st.integers(3, 8), st.integers(0, 10_000))
def test_friedman_is_scipys_also_with_ties(n_datasets: int, n_models: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 6, (n_datasets, n_models)).astype(float)
    if np.ptp(scores, axis=1).max() == 0:
        assert friedman(scores).p_value == 1
        return
    expected = stats.friedmanchisquare(*scores.T)
    ours = friedman(scores)
    assert ours.statistic == pytest.approx(expected.statistic)
    assert ours.p_value == pytest.approx(expected.pvalue)


def test_the_f_version_is_the_analysis_of_variance_of_the_ranks() -> None:
    scores = np.random.default_rng(0).normal(size=(9, 5))
    ranked = ranks(scores)
    between = 9 * ((ranked.mean(axis=0) - 3) ** 2).sum() / 4
    residual = ranked - ranked.mean(axis=0) - ranked.mean(axis=1, keepdims=True) + 3
    within = (residual**2).sum() / (4 * 8)
    assert friedman(scores).f_statistic == pytest.approx(between / within)


@pytest.mark.parametrize("alpha", DEMSAR)
def test_critical_differences_follow_the_published_table(alpha: float) -> None:
    for n_models, q in enumerate(DEMSAR[alpha], start=2):
        expected = q * np.sqrt(n_models * (n_models + 1) / (6 * 30))
        assert nemenyi_critical_difference(n_models, 30, alpha=alpha) == pytest.approx(expected, rel=3e-4)


def test_nemenyi_p_value_is_alpha_at_the_critical_difference() -> None:
    distance = nemenyi_critical_difference(4, 10, alpha=0.05)
    p_values = nemenyi_p_values([1.0, 1.0 + distance, 3.0, 3.0], 10)
    assert p_values[0, 1] == pytest.approx(0.05, abs=1e-4)
    assert p_values[2, 3] == pytest.approx(1)
    np.testing.assert_allclose(p_values, p_values.T)


def test_cliques_are_the_maximal_groups_without_a_difference() -> None:
    assert cliques([1.0, 1.5, 2.0, 4.0], 1.2) == [(0, 1, 2)]
    assert cliques([4.0, 1.0, 2.0, 3.0], 1.5) == [(1, 2), (2, 3), (3, 0)]
    assert cliques([1.0, 3.0], 1.0) == []


def test_wins_ties_and_losses_are_counted_where_two_were_compared() -> None:
    none = np.nan
    better = [[none, 1], [-1, none]]
    result = win_tie_loss([better, [[none, 0], [0, none]], [[none, none]] * 2, better])
    assert result.wins.tolist() == [[0, 2], [0, 0]]
    assert result.ties.tolist() == [[0, 1], [1, 0]]
    assert result.losses.tolist() == [[0, 0], [2, 0]]


def test_perfect_agreement_is_not_impossible_by_chance() -> None:
    found = friedman([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]])
    assert found.f_p_value == pytest.approx(1 / 6)
    # Counted: of the 6 orders of the second dataset one agrees with the first.
    orders = list(itertools.permutations([0.6, 0.5, 0.4]))
    agree = sum(math.isinf(friedman([[0.9, 0.8, 0.7], list(order)]).f_statistic) for order in orders)
    assert agree / len(orders) == pytest.approx(found.f_p_value)


def test_what_is_left_of_any_table_has_no_gaps() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        present = generator.random((7, 9)) < 0.8
        rows, columns = complete_block(present)
        assert present[np.ix_(rows, columns)].all()
    assert complete_block(np.zeros((3, 3))) == ([], [])
