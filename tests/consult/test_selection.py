"""Cases are drawn by known chances, and weights by their inverse are unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.consult.arms import select_cases

pytestmark = pytest.mark.slow

LABELS = np.repeat(np.arange(7), [40, 30, 20, 10, 5, 2, 1])
DRAWS = 1500
WRONG = np.random.default_rng(3).random(len(LABELS)) < np.linspace(0.05, 0.5, len(LABELS))


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [5, 20, 41, 300])
def test_chances_are_how_often_a_row_is_drawn(count: int) -> None:
    drawn = np.zeros(len(LABELS))
    chance = np.zeros(len(LABELS))
    for seed in range(DRAWS):
        chosen = select_cases(LABELS, WRONG, count=count, seed=seed)
        assert len(chosen.rows) == min(count, len(LABELS))
        drawn[chosen.rows] += 1
        chance[chosen.rows] = chosen.probability
    assert (drawn > 0).all()  # nobody is left out for good
    assert np.abs(drawn / DRAWS - chance).max() < 5 * 0.5 / np.sqrt(DRAWS)


def test_weighted_accuracy_is_unbiased() -> None:
    values = np.random.default_rng(4).random(len(LABELS)) < 0.3 + 0.1 * LABELS
    totals, counts = [], []
    for seed in range(DRAWS):
        chosen = select_cases(LABELS, WRONG, count=20, seed=seed)
        weights = 1 / chosen.probability
        totals.append((weights * values[chosen.rows]).sum())
        counts.append(weights.sum())
    assert np.mean(totals) == pytest.approx(values.sum(), abs=4 * np.std(totals) / np.sqrt(DRAWS))
    assert np.mean(counts) == pytest.approx(len(LABELS), abs=4 * np.std(counts) / np.sqrt(DRAWS) + 1e-9)


def test_classes_are_as_even_as_can_be_within_each_half() -> None:
    labels, wrong = np.repeat([0, 1, 2], 100), np.tile([True, False], 150)
    chosen = select_cases(labels, wrong, count=60)
    for half in (True, False):
        assert np.bincount(labels[chosen.rows[wrong[chosen.rows] == half]]).tolist() == [10, 10, 10]


def test_all_errors_are_taken_where_there_are_few() -> None:
    labels, wrong = np.zeros(100, dtype=np.int64), np.arange(100) < 4
    chosen = select_cases(labels, wrong, count=20)
    assert set(range(4)) <= set(chosen.rows.tolist())
    assert len(chosen.rows) == 20
