"""Who may be the best, and what the winner is worth."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut, bounds, t_quantile
from histobench.statistics.many_models import (
    BestSet,
    WinnerValue,
    best_set,
    simultaneous_pairs,
    winner_value,
)


def means_of(rows: np.ndarray) -> LeaveOneOut:
    """Means of columns [u, m] with each row left out."""
    u = len(rows)
    left_out = (rows.sum(axis=0) - rows) / (u - 1)
    names = tuple(f"encoder {k}" for k in range(rows.shape[1]))
    return LeaveOneOut(names, rows.mean(axis=0), left_out)


def winner_of(found: LeaveOneOut, *, lower_is_better: bool = False) -> WinnerValue:
    """The winner with its interval as a mean without bounds has it."""
    place = int(found.values.argmin() if lower_is_better else found.values.argmax())
    low, high = bounds(found, (-np.inf, np.inf))
    return winner_value(
        found, Interval(float(low[place]), float(high[place])), lower_is_better=lower_is_better
    )


def best_of(found: LeaveOneOut, *, lower_is_better: bool = False) -> BestSet:
    return best_set(simultaneous_pairs(found, lower_is_better=lower_is_better))


def test_the_set_holds_whom_the_interval_against_the_leader_does_not_separate() -> None:
    generator = np.random.default_rng(0)
    for _ in range(40):
        found = means_of(generator.normal([0, 0.5, 1.0, 1.1], 1, (25, 4)))
        pairs = simultaneous_pairs(found)
        leader = int(found.values.argmax())
        includes_0 = (pairs.low[leader] <= 0) & (pairs.high[leader] >= 0)
        assert (best_set(pairs).members == includes_0).all()


def test_two_equal_models_rarely_get_a_sole_best() -> None:
    generator = np.random.default_rng(8)
    tables = [means_of(generator.normal(0, 1, (30, 2))) for _ in range(600)]
    sole = np.mean([best_of(found).members.sum() == 1 for found in tables])
    # As often as the paired t-test calls them different, not twice as often.
    assert sole <= 0.07


def test_the_observed_best_is_always_in_and_lower_may_be_better() -> None:
    generator = np.random.default_rng(1)
    for _ in range(30):
        rows = generator.normal(0, 1, (12, 7))
        found = means_of(rows)
        assert best_of(found).members[found.values.argmax()]
        losses = best_of(means_of(-rows), lower_is_better=True)
        assert (losses.members == best_of(found).members).all()


@pytest.mark.parametrize("units", [5, 12, 30])
def test_a_best_one_of_ten_equal_models_is_in_the_set_in_95_percent_of_tables(units: int) -> None:
    generator = np.random.default_rng(units)
    inside = np.array(
        [
            best_of(
                means_of(generator.standard_t(5, (units, 1)) + generator.normal(0, 1, (units, 10)))
            ).members.mean()
            for _ in range(400)
        ]
    )
    assert inside.mean() >= 0.95


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
