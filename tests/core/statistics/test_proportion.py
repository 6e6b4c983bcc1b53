"""Intervals of proportions against statsmodels, the exact binomial distribution and hand-made sums."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from histobench.statistics.intervals import mean_of_proportions, wilson_bounds


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_away_from_the_ends_it_is_wilsons_interval(level: float) -> None:
    for n in (20, 51, 400):
        x = np.arange(4, n - 3)
        low, high = wilson_bounds(x, n, level=level)
        expected = proportion_confint(x, n, alpha=1 - level, method="wilson")
        np.testing.assert_allclose([low, high], expected, atol=1e-12)


def test_next_to_the_ends_the_inner_bound_is_the_poisson_bound() -> None:
    low, high = wilson_bounds([1, 199], 200)
    assert low[0] == pytest.approx(-np.log(0.95) / 200)
    assert high[1] == pytest.approx(1 + np.log(0.95) / 200)
    assert wilson_bounds(0, 30)[1] == pytest.approx(proportion_confint(0, 30, method="wilson")[1])


@pytest.mark.parametrize("n", [50, 200, 2000])
def test_the_truth_is_held_wherever_it_lies(n: int) -> None:
    x = np.arange(n + 1)
    low, high = wilson_bounds(x, n)
    coverage = [
        stats.binom.pmf(x, n, p)[(low <= p) & (p <= high)].sum()
        for p in (0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999)
    ]
    assert min(coverage) > 0.92
    assert np.mean(coverage) > 0.945


def test_a_mean_of_proportions_adds_distances_in_squares() -> None:
    low, high = wilson_bounds([9, 40, 3], [12, 50, 5])
    share = np.array([9 / 12, 40 / 50, 3 / 5])
    below = share.mean() - np.sqrt(((share - low) ** 2).sum()) / 3
    above = share.mean() + np.sqrt(((high - share) ** 2).sum()) / 3
    assert mean_of_proportions([9, 40, 3], [12, 50, 5]) == pytest.approx((below, above))


def test_perfect_classes_leave_room_below_one() -> None:
    low, high = mean_of_proportions([4, 46], [4, 46])
    assert high == 1.0
    assert 0.7 < low < 0.9
