from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.roi.metrics.batched import evaluate_episodes, evaluate_resamples
from histobench.roi.metrics.classification import evaluate


def probabilities(shape: tuple[int, ...], rng: np.random.Generator, votes: int | None) -> np.ndarray:
    p = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    return rng.multinomial(votes, p) / votes if votes else p


def agree(batched: dict[str, np.ndarray], k: int, single: dict[str, float | None]) -> None:
    for name, value in single.items():
        if value is None:
            assert np.isnan(batched[name][k]), name
        else:
            assert batched[name][k] == pytest.approx(value, abs=1e-9), name


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 5), st.integers(3, 40), st.integers(0, 10**6), st.sampled_from([None, 1, 4]))
def test_resamples_equal_a_loop_over_repeated_rows(c: int, n: int, seed: int, votes: int | None) -> None:
    rng = np.random.default_rng(seed)
    p, labels = probabilities((n, c), rng, votes), rng.integers(0, c, n)
    draws = rng.integers(0, n, (5, n))
    counts = np.stack([np.bincount(draw, minlength=n) for draw in draws])
    # A budget this small cuts one chunk per resample.
    batched = evaluate_resamples(p, labels, counts, memory=1)
    for k, draw in enumerate(draws):
        agree(batched, k, evaluate(p[draw], labels[draw], classes=[str(i) for i in range(c)]).values)


def test_images_that_were_not_scored_count_in_no_resample() -> None:
    rng = np.random.default_rng(5)
    p, labels = probabilities((50, 3), rng, None), rng.integers(0, 3, 50)
    p[:7] = np.nan
    predicted = np.where(np.arange(50) < 7, -1, rng.integers(0, 3, 50))
    counts = rng.multinomial(50, np.ones(50) / 50, size=3)
    batched = evaluate_resamples(p, labels, counts, predicted=predicted)
    for k in range(3):
        draw = np.repeat(np.arange(50), counts[k])
        agree(batched, k, evaluate(p[draw], labels[draw], predicted=predicted[draw], classes="abc").values)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 5), st.integers(5, 40), st.integers(0, 10**6), st.sampled_from([None, 1, 4]))
def test_episodes_equal_a_loop(c: int, n: int, seed: int, votes: int | None) -> None:
    rng = np.random.default_rng(seed)
    p, labels = probabilities((4, n, c), rng, votes), rng.integers(0, c, (4, n))
    batched = evaluate_episodes(p, labels, memory=1)
    for k in range(4):
        agree(batched, k, evaluate(p[k], labels[k], classes=[str(i) for i in range(c)]).values)


@pytest.mark.parametrize("votes", [None, 3, 20])
def test_float32_scores_are_ranked_like_float64_ones(votes: int | None) -> None:
    rng = np.random.default_rng(6)
    p = probabilities((5, 80, 4), rng, votes).astype(np.float32)
    p[0, :, 1] = 0.25
    labels = rng.integers(-1, 4, (5, 80))
    labels[1] = 2
    single, double = evaluate_episodes(p, labels), evaluate_episodes(p.astype(np.float64), labels)
    for name, values in double.items():
        np.testing.assert_allclose(single[name], values, rtol=0, atol=1e-12, err_msg=name)


def test_images_with_a_negative_label_do_not_count() -> None:
    rng = np.random.default_rng(3)
    p, labels = probabilities((3, 60, 4), rng, 6), rng.integers(0, 4, (3, 60))
    labels[0, 40:] = -1
    labels[2, 10:] = -1
    batched = evaluate_episodes(torch.from_numpy(p), torch.from_numpy(labels))
    for k in range(3):
        keep = labels[k] >= 0
        agree(batched, k, evaluate(p[k][keep], labels[k][keep], classes="abcd").values)
