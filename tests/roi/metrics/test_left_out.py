"""Metrics with an image left out, against the same metrics of the test set without it."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.roi.metrics.batched import evaluate_left_out, evaluate_resamples
from histobench.roi.metrics.left_out import auroc_left_out


def _predictions(n: int, c: int, *, tied: bool, seed: int = 0):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(c), rng.integers(0, c, n - c)])
    p = np.exp(rng.normal(size=(n, c)) + np.eye(c)[labels])
    p /= p.sum(axis=1, keepdims=True)
    return np.round(p * 4) / 4 if tied else p, labels


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("c", [2, 3, 5])
@pytest.mark.parametrize("n", [7, 60])
def test_every_metric_without_each_image_is_that_of_the_others(n: int, c: int, tied: bool) -> None:
    p, labels = _predictions(n, c, tied=tied)
    predicted = np.random.default_rng(1).integers(0, c, n)
    without = evaluate_left_out(p, labels, predicted=predicted, by_class=True, memory=10_000)
    slow = evaluate_resamples(p, labels, 1 - np.eye(n, dtype=int), predicted=predicted, by_class=True)
    assert without.keys() == slow.keys()
    for name, values in slow.items():
        np.testing.assert_allclose(without[name], values, atol=1e-12, err_msg=name)


def test_a_class_that_probabilities_do_not_cover_stays_undefined() -> None:
    p, labels = _predictions(30, 4, tied=False)
    p[:, 3] = np.nan
    without = evaluate_left_out(p, labels)
    slow = evaluate_resamples(p, labels, 1 - np.eye(30, dtype=int))
    for name, values in slow.items():
        np.testing.assert_allclose(without[name], values, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("c", [2, 4])
def test_the_auroc_without_each_image_or_group_is_that_of_the_others(c: int, tied: bool) -> None:
    p, labels = _predictions(50, c, tied=tied, seed=3)
    group = np.random.default_rng(2).permutation(np.arange(50) % 7)
    for unit in (np.arange(50), group):
        value, without = auroc_left_out(p, labels, None if unit is not group else group)
        counts = (unit[None] != np.arange(unit.max() + 1)[:, None]).astype(int)
        np.testing.assert_allclose(without, evaluate_resamples(p, labels, counts)["auroc"], atol=1e-12)
        whole = np.ones((1, 50), dtype=int)
        assert value == pytest.approx(evaluate_resamples(p, labels, whole)["auroc"][0])
