"""Tests over splits against their formulas written out, and against simulated splits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histobench.statistics.tests import corrected_resampled_t


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


def test_without_overlap_it_is_the_plain_t_test() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, 12)
    assert corrected_resampled_t(values, test_to_train=0.0).p_value == pytest.approx(
        stats.ttest_1samp(values, 0).pvalue
    )


def test_splits_that_all_agree_prove_nothing() -> None:
    same = corrected_resampled_t([0.1] * 5, test_to_train=0.25)
    assert np.isnan([same.low, same.high, same.p_value]).all()
    assert corrected_resampled_t([0.0] * 5, test_to_train=0.25).p_value == 1
    rounding = corrected_resampled_t([0.1, 0.1, 0.1 + 1e-16, 0.3 - 0.2], test_to_train=0.25)
    assert np.isnan(rounding.p_value)


@pytest.mark.slow
def test_equal_models_are_rarely_told_apart_where_the_plain_t_test_often_does() -> None:
    """Two noisy learners of equal worth, five repeats of five folds on one small sample."""
    rng = np.random.default_rng(5)
    corrected = plain = 0
    rounds = 200
    for _ in range(rounds):
        n = 60
        x = rng.normal(size=(n, 2))
        y = (x.sum(axis=1) + rng.normal(size=n) > 0).astype(int)
        differences = []
        for _ in range(5):
            fold = rng.permutation(np.arange(n) % 5)
            for k in range(5):
                train, test = fold != k, fold == k
                right = []
                for column in (0, 1):  # each model sees one of two equally good features
                    middle = [x[train & (y == c), column].mean() for c in (0, 1)]
                    said = np.abs(x[test, column] - middle[1]) < np.abs(x[test, column] - middle[0])
                    right.append((said == y[test]).mean())
                differences.append(right[0] - right[1])
        corrected += corrected_resampled_t(differences, test_to_train=0.25).p_value < 0.05
        plain += corrected_resampled_t(differences, test_to_train=0.0).p_value < 0.05
    assert plain / rounds > 0.2
    assert corrected / rounds < 0.12
