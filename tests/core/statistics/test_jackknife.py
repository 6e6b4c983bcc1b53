"""The jackknife against a loop over units, Student's tests of scipy and Welch's variance."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from histobench.statistics.jackknife import (
    LeaveOneOut,
    differences,
    leave_one_out,
    t_p_value,
    t_quantile,
)
from histobench.statistics.resampling import Counts, Floats, sampling_design


def _loss_of_three_models(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).exponential(size=(3, 23))


def _means(columns: Floats, counts: Counts) -> dict[str, Floats]:
    return {f"model {k}": counts @ column / counts.sum(axis=1) for k, column in enumerate(columns)}


def test_values_with_a_patient_left_out_are_those_without_the_patients_images() -> None:
    losses = _loss_of_three_models()
    patients = np.random.default_rng(1).integers(0, 6, 23)
    found = leave_one_out(lambda w: _means(losses, w), sampling_design(23, clusters=patients))
    expected = [[column[patients != k].mean() for column in losses] for k in range(6)]
    np.testing.assert_allclose(found.left_out, expected)
    np.testing.assert_allclose(found.values, losses.mean(axis=1))
    assert found.freedom == pytest.approx(5)


def test_differences_of_means_are_the_paired_t_test() -> None:
    losses = _loss_of_three_models()
    found = leave_one_out(lambda w: _means(losses, w), sampling_design(23))
    pairs = differences(found, level=0.9)
    for k, (i, j) in enumerate(combinations(range(3), 2)):
        reference = stats.ttest_rel(losses[i], losses[j])
        interval = reference.confidence_interval(0.9)
        assert pairs.p_value[k] == pytest.approx(reference.pvalue)
        assert (pairs.low[k], pairs.high[k]) == pytest.approx((interval.low, interval.high))


def test_strata_give_welchs_variance() -> None:
    sample = np.random.default_rng(2).normal(size=20)
    strata = np.repeat([0, 1], [6, 14])

    def gap(w: Counts) -> dict[str, Floats]:
        means = [(w * (strata == k)) @ sample / (w * (strata == k)).sum(axis=1) for k in (0, 1)]
        return {"gap": means[0] - means[1]}

    found = leave_one_out(gap, sampling_design(20, strata=strata))
    expected = sum(sample[strata == k].var(ddof=1) / (strata == k).sum() for k in (0, 1))
    assert found.variance[0] == pytest.approx(expected)


def test_the_interval_excludes_zero_exactly_when_p_is_below_alpha() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        left_out = generator.normal(size=(8, 6))
        found = LeaveOneOut(tuple("abcdef"), generator.normal(size=6) * 4, left_out, np.zeros(8, int), 7.0)
        pairs = differences(found)
        np.testing.assert_array_equal((pairs.low > 0) | (pairs.high < 0), pairs.p_value < 0.05)


def test_influences_add_up_to_the_covariance_on_any_scale() -> None:
    losses = _loss_of_three_models()
    found = leave_one_out(lambda w: _means(losses, w), sampling_design(23)).mapped(np.log)
    influences = found.influences
    np.testing.assert_allclose(influences.T @ influences, found.covariance)
    np.testing.assert_allclose(np.diag(found.covariance), found.variance)
    loop = [22 / 23 * ((x - x.mean()) ** 2).sum() for x in found.left_out.T]
    np.testing.assert_allclose(found.variance, loop)


def test_models_that_never_differ_have_p_one_and_an_undefined_column_has_none() -> None:
    left_out = np.random.default_rng(4).normal(size=(8, 1)) + np.zeros((8, 3))
    left_out[2, 2] = np.nan
    found = LeaveOneOut(("a", "b", "c"), np.array([1.0, 1.0, 2.0]), left_out, np.zeros(8, int), 7.0)
    p_value = differences(found).p_value
    assert p_value[0] == 1.0
    assert np.isnan(p_value[1:]).all()


def test_quantiles_and_p_values_are_students() -> None:
    assert t_quantile(7, 0.9) == pytest.approx(stats.t.ppf(0.95, 7))
    assert t_quantile(np.inf, 0.95) == pytest.approx(stats.norm.ppf(0.975))
    assert t_p_value([2.5], 4)[0] == pytest.approx(2 * stats.t.sf(2.5, 4))
    assert t_p_value([2.5], np.inf)[0] == pytest.approx(2 * stats.norm.sf(2.5))
