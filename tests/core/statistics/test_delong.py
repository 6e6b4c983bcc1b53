"""DeLong's AUROC, variance and test against scikit-learn, a slow definition and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike
from sklearn.metrics import roc_auc_score

from histobench.statistics.delong import DeLongTest, delong_test


def alone(scores: ArrayLike, labels: ArrayLike) -> DeLongTest:
    """One model against scores that rank nothing, whose AUROC is 1/2 without any variance."""
    return delong_test(scores, np.zeros(np.shape(scores)), labels)


def slow_delong(scores: list[np.ndarray], labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUROCs and covariance by the definition: all pairs of a positive and a negative."""
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    v10 = np.empty((len(scores), len(positives)))
    v01 = np.empty((len(scores), len(negatives)))
    for k, score in enumerate(scores):
        kernel = (score[positives][:, None] > score[negatives]) + 0.5 * (
            score[positives][:, None] == score[negatives]
        )
        v10[k], v01[k] = kernel.mean(axis=1), kernel.mean(axis=0)
    covariance = np.cov(v10) / len(positives) + np.cov(v01) / len(negatives)
    return v10.mean(axis=1), np.atleast_2d(covariance)


def two_models(generator: np.random.Generator, n: int = 120, ties: bool = False) -> tuple[np.ndarray, ...]:
    labels = (generator.random(n) < 0.4).astype(int)
    shared = generator.normal(size=n)
    first = labels + shared + generator.normal(size=n)
    second = 0.6 * labels + shared + generator.normal(size=n)
    return (first.round(1), second.round(1), labels) if ties else (first, second, labels)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_scikit_learns_and_variance_is_the_definitions(ties: bool) -> None:
    first, second, labels = two_models(np.random.default_rng(0), ties=ties)
    aurocs, covariance = slow_delong([first, second], labels)
    for k, scores in enumerate((first, second)):
        ours = alone(scores, labels)
        assert ours.first == pytest.approx(roc_auc_score(labels, scores))
        assert ours.variance == pytest.approx(covariance[k, k])
    test = delong_test(first, second, labels)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert test.difference == pytest.approx(aurocs[0] - aurocs[1])
    assert test.variance == pytest.approx(variance)
    assert test.z == pytest.approx((aurocs[0] - aurocs[1]) / np.sqrt(variance))


def test_macro_of_two_classes_is_the_binary_auroc() -> None:
    first, second, labels = two_models(np.random.default_rng(1))
    both = [np.stack([-scores, scores], axis=1) for scores in (first, second)]
    macro, binary = alone(both[0], labels), alone(first, labels)
    assert macro.first == pytest.approx(binary.first)
    assert macro.variance == pytest.approx(binary.variance)
    assert delong_test(*both, labels).p_value == pytest.approx(delong_test(first, second, labels).p_value)


def many_classes(generator: np.random.Generator, labels: np.ndarray, signal: float) -> np.ndarray:
    logits = generator.normal(size=(len(labels), 4))
    logits[np.arange(len(labels)), labels] += signal
    exponent = np.exp(logits)
    return exponent / exponent.sum(axis=1, keepdims=True)


def test_macro_auroc_is_scikit_learns() -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 4, 200)
    scores = many_classes(generator, labels, 1.0)
    expected = roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert alone(scores, labels).first == pytest.approx(expected)


@pytest.mark.slow
def test_macro_variance_is_the_variance_over_simulated_test_sets() -> None:
    generator = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2, 3], [60, 40, 30, 20])
    runs = [alone(many_classes(generator, labels, 1.0), labels) for _ in range(1200)]
    assert np.mean([run.variance for run in runs]) == pytest.approx(
        np.var([run.first for run in runs], ddof=1), rel=0.1
    )


@pytest.mark.slow
def test_95_percent_intervals_of_the_macro_auroc_cover_in_93_to_97_percent() -> None:
    generator = np.random.default_rng(4)
    big = np.repeat([0, 1, 2, 3], 20_000)
    truth = alone(many_classes(generator, big, 1.0), big).first
    labels = np.repeat([0, 1, 2, 3], [60, 40, 50, 50])
    inside = []
    for _ in range(1000):
        low, high = alone(many_classes(generator, labels, 1.0), labels).interval()
        inside.append(low <= truth - 0.5 <= high)
    assert 0.93 <= np.mean(inside) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 4])
def test_on_null_data_the_paired_test_rejects_about_5_percent(n_classes: int) -> None:
    generator = np.random.default_rng(5)
    labels = np.repeat([0, 1, 2, 3], 50) % n_classes
    rejected = 0
    for _ in range(1000):
        shared = generator.normal(size=(200, 4))
        shared[np.arange(200), labels] += 1.2
        first, second = (shared + generator.normal(size=(200, 4)) for _ in range(2))
        if n_classes == 2:
            first, second = first[:, 1] - first[:, 0], second[:, 1] - second[:, 0]
        rejected += delong_test(first, second, labels).p_value <= 0.05
    assert 0.03 <= rejected / 1000 <= 0.065


def test_clusters_of_one_sample_change_little_and_copies_change_nothing() -> None:
    first, second, labels = two_models(np.random.default_rng(6), n=400)
    alone = delong_test(first, second, labels)
    singles = delong_test(first, second, labels, clusters=list(range(400)))
    assert singles.variance == pytest.approx(alone.variance, rel=0.02)
    tripled = delong_test(
        np.repeat(first, 3), np.repeat(second, 3), np.repeat(labels, 3), clusters=np.repeat(np.arange(400), 3)
    )
    assert tripled.variance == pytest.approx(singles.variance, rel=1e-6)
    assert delong_test(np.repeat(first, 3), np.repeat(second, 3), np.repeat(labels, 3)).variance < (
        alone.variance / 2.5
    )


@pytest.mark.slow
def test_few_clusters_claim_hardly_more_than_many() -> None:
    generator = np.random.default_rng(8)
    cluster = np.repeat(np.arange(5), 32)
    labels = np.arange(160) % 2
    rejected, by_normal = 0, 0
    for _ in range(800):
        first, second = (
            1.2 * labels + generator.normal(size=5)[cluster] * (2 * labels - 1) + generator.normal(size=160)
            for _ in range(2)
        )
        test = delong_test(first, second, labels, clusters=cluster.tolist())
        assert (test.interval()[0] <= 0 <= test.interval()[1]) == (test.p_value >= 0.05)
        rejected += test.p_value <= 0.05
        by_normal += abs(test.z) >= 1.96
    assert rejected / 800 <= 0.075
    assert by_normal / 800 > 0.09


def test_equal_scores_have_no_difference() -> None:
    first, _, labels = two_models(np.random.default_rng(7))
    test = delong_test(first, 2 * first, labels)
    assert (test.difference, test.p_value) == (0, 1)
    assert test.interval() == pytest.approx((0, 0), abs=1e-9)


def test_absent_classes_single_samples_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="class 1 has 0 of 3"):
        alone([0.1, 0.2, 0.3], [0, 0, 0])
    with pytest.raises(ValueError, match="one sample gives no variance"):
        alone([0.1, 0.2, 0.3], [0, 0, 1])
    with pytest.raises(ValueError, match="same samples"):
        delong_test([0.1, 0.2], [0.1], [0, 1])
