"""All pairs at once: no false claim in 95% of tables, ranks that hold together, the best and the winner."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut, bounds, differences, t_quantile
from histobench.statistics.many_models import (
    WinnerValue,
    best_set,
    independent_comparisons,
    rank_intervals,
    simultaneous_pairs,
    winner_value,
)


def means_of(rows: np.ndarray) -> LeaveOneOut:
    """Means of columns [u, m] with each row left out."""
    u = len(rows)
    left_out = (rows.sum(axis=0) - rows) / (u - 1)
    names = tuple(f"encoder {k}" for k in range(rows.shape[1]))
    return LeaveOneOut(names, rows.mean(axis=0), left_out)


@pytest.mark.parametrize("m", [3, 10, 40])
def test_with_many_units_the_critical_value_of_equally_correlated_models_is_tukeys(m: int) -> None:
    covariance = 0.7 + 0.3 * np.eye(m)
    worth = independent_comparisons(covariance, 1e6)
    critical = stats.norm.isf((1 - 0.95 ** (1 / worth)) / 2)
    tukey = stats.studentized_range.ppf(0.95, m, np.inf) / 2**0.5
    assert critical == pytest.approx(tukey, rel=0.015)


def test_two_models_need_no_correction() -> None:
    rows = np.random.default_rng(0).normal(0.1, 1, (40, 2))
    pairs, alone = simultaneous_pairs(means_of(rows)), differences(means_of(rows))
    assert pairs.low[0, 1] == pytest.approx(alone.low[0])
    assert pairs.high[0, 1] == pytest.approx(alone.high[0])
    assert pairs.p_adjusted[0, 1] == pytest.approx(alone.p_value[0])


def test_near_copies_of_a_model_cost_little() -> None:
    generator = np.random.default_rng(1)
    four = generator.normal(0, 1, (4000, 4))
    copies = np.repeat(four, 5, axis=1) + generator.normal(0, 0.001, (4000, 20))
    # Copies also differ from each other, in pairs that are comparisons of their own.
    alone = independent_comparisons(np.cov(generator.normal(0, 1, (4000, 20)).T), 3999)
    assert independent_comparisons(np.cov(copies.T), 3999) < 0.8 * alone
    same = np.repeat(four, 5, axis=1)
    assert independent_comparisons(np.cov(same.T), 1e7) == pytest.approx(
        independent_comparisons(np.cov(four.T), 1e7), rel=0.1
    )


def test_the_interval_excludes_0_exactly_where_the_corrected_p_value_is_below_alpha() -> None:
    generator = np.random.default_rng(2)
    decided = 0
    for _ in range(50):
        rows = generator.normal(np.linspace(0, 1.2, 6), 1, (25, 6))
        pairs = simultaneous_pairs(means_of(rows), level=0.9)
        excludes = (pairs.low > 0) | (pairs.high < 0)
        assert (excludes == (pairs.p_adjusted < 0.1)).all()
        assert (pairs.better == (pairs.low > 0)).all()
        assert np.allclose(pairs.low, -pairs.high.T)
        decided += int(excludes.sum())
    assert 100 < decided < 1400  # both kinds occur


@pytest.mark.slow
@pytest.mark.parametrize(("units", "m"), [(5, 10), (12, 10), (30, 10), (200, 20)])
def test_equal_models_are_told_apart_in_at_most_5_percent_of_tables(units: int, m: int) -> None:
    """Heavy tails in units that all models share, as patients have."""
    generator = np.random.default_rng(units)
    false = 0
    for _ in range(200):
        difficulty = generator.standard_t(5, (units, 1))
        pairs = simultaneous_pairs(means_of(difficulty + generator.normal(0, 1, (units, m))))
        false += bool(pairs.better.any())
    assert false / 200 <= 0.06


def test_one_really_better_model_is_found() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(0, 1, (30, 10)) + 1.5 * (np.arange(10) == 4) + generator.normal(0, 3, (30, 1))
    pairs = simultaneous_pairs(means_of(rows))
    ranks = rank_intervals(pairs.better)
    assert ranks[4].tolist() == [1, 1]
    assert (ranks[np.arange(10) != 4] == [2, 10]).all()
    losses = simultaneous_pairs(means_of(-rows), lower_is_better=True)
    assert (rank_intervals(losses.better) == ranks).all()


def test_one_unit_says_nothing() -> None:
    found = means_of(np.ones((2, 3)))
    pairs = simultaneous_pairs(LeaveOneOut(found.names, found.values, found.left_out[:1]))
    assert np.isnan(pairs.low[0, 1])
    assert not pairs.better.any()


def test_pairs_of_an_undefined_spread_make_no_claim_and_do_not_spoil_the_others() -> None:
    rows = np.random.default_rng(6).normal([0, 3, 0], 1, (20, 3))
    found = means_of(rows)
    found.left_out[0, 2] = np.nan
    pairs = simultaneous_pairs(found)
    assert np.isnan(pairs.low[2, :2]).all()
    assert pairs.better[1, 0]
    for i, j in combinations(range(3), 2):
        assert np.isnan(pairs.p_adjusted[i, j]) == (j == 2)


def winner_of(found: LeaveOneOut, *, lower_is_better: bool = False) -> WinnerValue:
    """The winner with its interval as a mean without bounds has it."""
    place = int(found.values.argmin() if lower_is_better else found.values.argmax())
    low, high = bounds(found, (-np.inf, np.inf))
    return winner_value(
        found, Interval(float(low[place]), float(high[place])), lower_is_better=lower_is_better
    )


def may_be_best(found: LeaveOneOut, *, lower_is_better: bool = False) -> np.ndarray:
    return np.isin(found.names, best_set(simultaneous_pairs(found, lower_is_better=lower_is_better)))


def test_the_set_holds_whom_the_interval_against_the_leader_does_not_separate() -> None:
    generator = np.random.default_rng(0)
    for _ in range(40):
        found = means_of(generator.normal([0, 0.5, 1.0, 1.1], 1, (25, 4)))
        pairs = simultaneous_pairs(found)
        leader = int(found.values.argmax())
        includes_0 = (pairs.low[leader] <= 0) & (pairs.high[leader] >= 0)
        assert (may_be_best(found) == includes_0).all()
        losses = replace(found, values=-found.values, left_out=-found.left_out)
        assert (may_be_best(losses, lower_is_better=True) == includes_0).all()


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("units", "m"), [(12, 10), (60, 10), (60, 3), (30, 30)])
def test_the_winner_of_equal_models_loses_its_luck(units: int, m: int) -> None:
    """Its mean excess falls to under a sixth, and the interval holds its true value in at least 93%."""
    generator = np.random.default_rng(m)
    measured, corrected, held = [], [], 0
    for _ in range(200):
        rows = generator.normal(0, 0.7, (units, 1)) + generator.normal(0, 1, (units, m))
        winner = winner_of(means_of(rows))
        measured.append(winner.measured)
        corrected.append(winner.value)
        held += winner.interval.contains(0.0)
    assert abs(np.mean(corrected)) < np.mean(measured) / 6 + 2 * np.std(corrected) / 14
    assert held / 200 >= 0.93


def test_a_clear_winner_keeps_its_value_and_its_interval() -> None:
    rows = np.random.default_rng(3).normal(0, 1, (40, 10))
    rows[:, 0] += 10
    found = means_of(rows)
    winner = winner_of(found)
    half = float(t_quantile(found.degrees[0])) * found.variance[0] ** 0.5
    assert winner.name == "encoder 0"
    assert winner.value == pytest.approx(winner.measured, abs=0.05 * half)
    assert winner.interval.high == pytest.approx(winner.measured + half)
    assert winner.interval.low == pytest.approx(winner.measured - half, abs=0.1 * half)


def test_the_winner_of_losses_is_corrected_upwards() -> None:
    rows = np.random.default_rng(4).normal(0, 1, (20, 8))
    high, low = winner_of(means_of(rows)), winner_of(means_of(-rows), lower_is_better=True)
    assert low.value == pytest.approx(-high.value)
    assert (low.interval.low, low.interval.high) == pytest.approx((-high.interval.high, -high.interval.low))
    assert low.value > low.measured
