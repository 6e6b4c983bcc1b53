"""Holm's correction, the corrected t test, Cohen's kappa and the Bayesian signed-rank test."""

from __future__ import annotations

from dataclasses import astuple

import baycomp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests

from builders import examples
from histobench.statistics.tests import SignedRank, cohen_kappa, corrected_resampled_t, holm, signed_ranks

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(P_VALUES)
def test_adjusted_p_values_are_statsmodels(p_values: list[float]) -> None:
    np.testing.assert_allclose(holm(p_values), multipletests(p_values, method="holm")[1])


@given(P_VALUES)
def test_tests_that_were_not_made_do_not_count(p_values: list[float]) -> None:
    with_gaps = np.repeat(p_values, 2)
    with_gaps[1::2] = np.nan
    np.testing.assert_array_equal(holm(with_gaps)[::2], holm(p_values))
    assert np.isnan(holm(with_gaps)[1::2]).all()


def test_the_corrected_t_is_nadeau_and_bengios_formula_written_out() -> None:
    differences = [0.03, -0.01, 0.02, 0.05, 0.01, 0.04, 0.00, 0.02, 0.03, 0.01]
    count, n_train, n_test = 10, 80, 20
    mean = sum(differences) / count
    variance = sum((d - mean) ** 2 for d in differences) / (count - 1)
    error = ((1 / count + n_test / n_train) * variance) ** 0.5
    found = corrected_resampled_t(differences, test_to_train=n_test / n_train)
    assert found.mean == pytest.approx(mean)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean / error), count - 1))
    reach = stats.t.ppf(0.975, count - 1) * error
    assert (found.low, found.high) == (pytest.approx(mean - reach), pytest.approx(mean + reach))
    assert (found.low > 0) == (found.p_value < 0.05)


def test_splits_that_all_agree_prove_nothing() -> None:
    same = corrected_resampled_t([0.1] * 5, test_to_train=0.25)
    assert np.isnan([same.low, same.high, same.p_value]).all()
    assert corrected_resampled_t([0.0] * 5, test_to_train=0.25).p_value == 1
    rounding = corrected_resampled_t([0.1, 0.1, 0.1 + 1e-16, 0.3 - 0.2], test_to_train=0.25)
    assert np.isnan(rounding.p_value)


@pytest.mark.parametrize("labels", [2, 3, 5])
@pytest.mark.parametrize("n", [12, 60, 400])
def test_kappa_and_its_error_are_those_of_the_libraries(labels: int, n: int) -> None:
    generator = np.random.default_rng(n + labels)
    first = generator.integers(labels, size=n)
    second = np.where(generator.random(n) < 0.6, first, generator.integers(labels, size=n))
    found = cohen_kappa(first.tolist(), second.tolist())
    known = cohens_kappa(confusion_matrix(first, second))
    assert found.kappa == pytest.approx(cohen_kappa_score(first, second))
    assert found.kappa == pytest.approx(known.kappa)
    assert found.standard_error == pytest.approx(known.std_kappa)
    assert found.interval.low <= known.kappa_low + 1e-12
    assert found.interval.high >= min(known.kappa_upp, 1.0) - 1e-12
    if n == 400:
        assert found.interval.low == pytest.approx(known.kappa_low, abs=0.02)


def test_perfect_agreement_of_few_is_not_certain() -> None:
    found = cohen_kappa([0, 1] * 5, [0, 1] * 5)
    assert found.kappa == 1
    assert found.standard_error == 0
    assert found.interval.low < 0.6


def test_the_interval_holds_the_truth() -> None:
    """Two raters who know the label of 70 % and guess the rest: kappa is 0.49 for even labels."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        truth = generator.integers(2, size=40)
        raters = [np.where(generator.random(40) < 0.7, truth, generator.integers(2, size=40)) for _ in "ab"]
        held += cohen_kappa(raters[0].tolist(), raters[1].tolist()).interval.contains(0.49)
    assert held / 600 >= 0.93


def signed_rank(differences: ArrayLike, *, rope: float = 0.01) -> SignedRank | None:
    each = np.asarray(differences, dtype=np.float64)
    return signed_ranks(np.stack([each, np.zeros_like(each)], axis=1), rope=rope)[0][1]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "shift", "rope"), [(5, 0.01, 0.01), (12, 0.02, 0.01), (20, 0.0, 0.02), (8, 0.03, 0.0)]
)
def test_the_chances_are_those_of_baycomp(n: int, shift: float, rope: float) -> None:
    generator = np.random.default_rng(n)
    second = generator.uniform(0.6, 0.9, n)
    first = second + generator.normal(shift, 0.02, n)
    found = signed_rank(first - second, rope=rope)
    posterior = baycomp.SignedRankTest(second, first, rope=rope, nsamples=20_000, random_state=0)
    expected = posterior.probs()
    ours = (found.worse, found.equivalent, found.better)
    assert ours == pytest.approx(expected, abs=0.015)
    assert sum(ours) == pytest.approx(1)


def test_the_next_dataset_varies_more_than_the_datasets_as_a_whole() -> None:
    differences = [0.05, 0.04, 0.03, 0.06, 0.05, -0.03, 0.02, 0.05]
    found = signed_rank(differences, rope=0.01)
    assert found.better > 0.95
    assert found.next_better == pytest.approx(7 / 8.5)
    assert found.next_worse == pytest.approx(1 / 8.5)
    assert found.next_better + found.next_equivalent + found.next_worse == pytest.approx(1)


def test_all_pairs_use_the_datasets_that_both_were_run_on() -> None:
    generator = np.random.default_rng(3)
    scores = generator.uniform(0.5, 0.9, (9, 4))
    scores[2, 1] = scores[5, 3] = np.nan
    scores[:, 2] = np.nan
    scores[0, 2] = 0.7
    found = signed_ranks(scores, rope=0.02)
    for i in range(4):
        for j in range(4):
            alone = None if i == j else signed_rank(scores[:, i] - scores[:, j], rope=0.02)
            if alone is None:
                assert found[i][j] is None
            else:
                assert astuple(found[i][j]) == pytest.approx(astuple(alone))
    assert found[0][1].datasets == 8
    assert found[0][2].datasets == 1
    losses = signed_ranks(scores, rope=0.02, lower_is_better=True)
    assert astuple(losses[0][1]) == pytest.approx(astuple(found[1][0]))


def test_without_a_shared_dataset_there_is_no_statement() -> None:
    assert signed_rank([np.nan, np.nan]) is None
    assert signed_ranks([[0.5, np.nan], [np.nan, 0.5]])[0][1] is None
