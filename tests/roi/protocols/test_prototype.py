from __future__ import annotations

import numpy as np
import torch

from histobench.roi.protocols.knn import prototype


def slow_prototype(train: np.ndarray, labels: np.ndarray, test: np.ndarray, c: int) -> np.ndarray:
    mean = train.mean(0)
    unit = [(x - mean) / np.linalg.norm(x - mean) for x in train]
    means = [
        np.mean([x for x, label in zip(unit, labels, strict=True) if label == k], axis=0) for k in range(c)
    ]
    rows = []
    for x in test:
        query = (x - mean) / np.linalg.norm(x - mean)
        scores = np.exp([-np.linalg.norm(query - m) for m in means])
        rows.append(scores / scores.sum())
    return np.array(rows)


def test_probabilities_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    train, labels, test = rng.normal(2, 1, (120, 10)), rng.integers(0, 4, 120), rng.normal(2, 1, (30, 10))
    outcome = prototype(
        torch.from_numpy(train).float(),
        torch.from_numpy(labels),
        torch.from_numpy(test).float(),
        n_classes=4,
        memory=1,
    )
    expected = slow_prototype(
        train.astype(np.float32).astype(float), labels, test.astype(np.float32).astype(float), 4
    )
    np.testing.assert_allclose(outcome.probabilities, expected, atol=1e-12)
    np.testing.assert_array_equal(outcome.predicted, expected.argmax(1))


def test_a_class_without_training_images_is_never_predicted() -> None:
    train, labels = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2 * 2
    outcome = prototype(train, labels, train, n_classes=3)
    assert (outcome.probabilities[:, 1] == 0).all()
    np.testing.assert_allclose(outcome.probabilities.sum(1), 1)
    assert outcome.info["absent_from_train"] == [1]


def test_a_query_at_the_training_mean_is_not_a_division_by_zero() -> None:
    train = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    outcome = prototype(train, torch.tensor([0, 1]), torch.zeros(1, 2), n_classes=2)
    np.testing.assert_allclose(outcome.probabilities, [[0.5, 0.5]])
    assert outcome.predicted.tolist() == [0]
