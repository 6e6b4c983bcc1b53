"""The one rule for intervals and differences: against loops over units, closed forms and its own promises."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from histobench.statistics.intervals import exact_bounds
from histobench.statistics.jackknife import (
    LeaveOneOut,
    bounds,
    bunch,
    bunches,
    crossed,
    differences,
    freedom_of_sizes,
    interaction_variance,
    leave_one_out,
    proportion,
    t_quantile,
    turning,
    wilson_bounds,
)
from histobench.statistics.resampling import Counts, Floats, sampling_design


def _losses(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).exponential(size=(3, 23))


def _means(columns: Floats, counts: Counts) -> dict[str, Floats]:
    return {f"model {k}": counts @ column / counts.sum(axis=1) for k, column in enumerate(columns)}


def test_values_with_a_patient_left_out_are_those_without_the_patients_images() -> None:
    losses = _losses()
    patients = np.random.default_rng(1).integers(0, 6, 23)
    found = leave_one_out(lambda w: _means(losses, w), sampling_design(23, clusters=patients))
    expected = [[column[patients != k].mean() for column in losses] for k in range(6)]
    np.testing.assert_allclose(found.left_out, expected)
    np.testing.assert_allclose(found.values, losses.mean(axis=1))
    loop = [5 / 6 * ((x - x.mean()) ** 2).sum() for x in found.left_out.T]
    np.testing.assert_allclose(found.variance, loop)
    np.testing.assert_allclose(np.diag(found.covariance), loop)


def test_differences_of_many_means_are_the_paired_t_test() -> None:
    losses = np.random.default_rng(0).normal(size=(3, 4000))
    found = leave_one_out(lambda w: _means(losses, w), sampling_design(4000), max_blocks=4000)
    pairs = differences(found, level=0.9)
    for k, (i, j) in enumerate(combinations(range(3), 2)):
        reference = stats.ttest_rel(losses[i], losses[j])
        interval = reference.confidence_interval(0.9)
        assert pairs.p_value[k] == pytest.approx(reference.pvalue, abs=0.005)
        assert (pairs.low[k], pairs.high[k]) == pytest.approx((interval.low, interval.high), abs=1e-3)


def test_an_interval_excludes_0_exactly_when_its_p_value_is_below_alpha() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        left_out = generator.normal(0.6, 0.02, size=(8, 6))
        values = np.clip(generator.normal(0.6, 0.2, size=6), 0, 1)
        found = LeaveOneOut(tuple("abcdef"), values, left_out, np.full((1, 6), -0.01), 100.0)
        pairs = differences(found)
        np.testing.assert_array_equal((pairs.low > 0) | (pairs.high < 0), pairs.p_value < 0.05)


def test_equal_models_have_p_one_and_an_undefined_column_has_none() -> None:
    left_out = np.random.default_rng(4).normal(size=(8, 1)) + np.zeros((8, 3))
    left_out[2, 2] = np.nan
    pairs = differences(LeaveOneOut(("a", "b", "c"), np.array([1.0, 1.0, 2.0]), left_out))
    assert pairs.p_value[0] == 1.0
    assert np.isnan(pairs.p_value[1:]).all()


@pytest.mark.parametrize("wrong", [0, 1, 7, 100, 199, 200])
def test_a_share_of_single_images_has_wilsons_interval(wrong: int) -> None:
    right = np.r_[np.zeros(wrong), np.ones(200 - wrong)]
    (low,), (high,) = bounds(proportion(right, np.ones(200)))
    expected = proportion_confint(200 - wrong, 200, method="wilson")
    assert (low, high) == pytest.approx(expected, abs=0.01)


def test_wilson_and_exact_bounds_are_those_of_the_libraries() -> None:
    for x, n in ((0, 6), (4, 6), (6, 6), (37, 90)):
        low, high = wilson_bounds(x / n, n, stats.norm.ppf(0.975))
        assert (low, high) == pytest.approx(proportion_confint(x, n, method="wilson"), abs=1e-12)
        assert exact_bounds(x, n) == pytest.approx(proportion_confint(x, n, method="beta"), abs=1e-9)


def test_values_without_an_end_keep_to_the_side_that_they_have() -> None:
    left_out = np.random.default_rng(0).normal(0.5, 0.02, (20, 1))
    found = LeaveOneOut(("x",), np.array([0.5]), left_out)
    error = float(found.variance[0]) ** 0.5 * float(t_quantile(found.degrees)[0])
    for within, expected in (
        ((-np.inf, np.inf), (0.5 - error, 0.5 + error)),
        ((0.0, np.inf), (0.5 * np.exp(-2 * error), 0.5 * np.exp(2 * error))),
        ((-np.inf, 1.0), (1 - 0.5 * np.exp(2 * error), 1 - 0.5 * np.exp(-2 * error))),
    ):
        assert [float(end[0]) for end in bounds(found, within)] == pytest.approx(expected)


def test_bunches_grow_with_groups_and_with_errors_that_come_together() -> None:
    assert bunch(np.ones(50)) == 1.0
    assert bunch(np.full(5, 21)) == pytest.approx(2.0)
    sizes = np.full(10, 20.0)
    together, apart = np.zeros((10, 1)), np.full((10, 1), 2.0)
    together[0] = 20
    assert bunches(together, sizes)[0] > 5 * bunches(apart, sizes)[0]
    assert bunches(np.zeros((10, 1)), sizes)[0] == bunches(apart, sizes)[0] == pytest.approx(bunch(sizes))
    assert turning(np.zeros((10, 1)), sizes)[0] < 0 < turning(np.full((10, 1), 20.0), sizes)[0]


def test_degrees_of_freedom_fall_where_few_units_carry_the_spread() -> None:
    even, one = np.tile([0.1, -0.1], 20)[:, None], np.zeros((40, 1))
    one[0] = 1
    assert freedom_of_sizes(np.full(40, 7)) == pytest.approx(39)
    assert freedom_of_sizes(np.r_[1000, np.ones(39)]) < 1
    for given, expected in ((np.inf, 39), (7.5, 7.5), (0.5, 3)):
        assert LeaveOneOut(("x",), np.zeros(1), even, freedom=given).degrees[0] == pytest.approx(expected)
    assert LeaveOneOut(("x",), np.zeros(1), one).degrees[0] == pytest.approx(3)
    assert LeaveOneOut(("x",), np.zeros(1), one, grouped=False).degrees[0] == pytest.approx(39)


def test_strata_take_their_own_means() -> None:
    solved, tries = np.r_[np.full(10, 4.0), np.zeros(10)], np.full(20, 4.0)
    mixed, within = proportion(solved, tries), proportion(solved, tries, strata=np.repeat(["a", "b"], 10))
    assert within.variance[0] < 1e-12 < mixed.variance[0]


def test_two_sources_of_chance_add_up_less_what_they_share() -> None:
    table = np.random.default_rng(5).normal(0.7, 0.05, (12, 9))  # episodes x units left out
    units = LeaveOneOut(("a",), np.array([0.7]), table.mean(axis=0)[:, None])
    episodes = table.mean(axis=1)[:, None]
    shared = interaction_variance(table)
    found = crossed(units, episodes, interaction=[shared])
    alone = crossed(units, episodes)
    assert alone.variance[0] == pytest.approx(units.variance[0] + episodes.var(ddof=1) / 12)
    assert found.variance[0] == pytest.approx(
        units.variance[0] + max(float(episodes.var(ddof=1)) / 12 - shared, 0.0)
    )
    assert 3 <= found.degrees[0] <= 8 + 11
