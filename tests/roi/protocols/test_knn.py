from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from histobench.roi.protocols import neighbours
from histobench.roi.protocols.centering import Centring
from histobench.roi.protocols.knn import knn
from histobench.roi.protocols.neighbours import NeighbourSearch, nearest


def slow_knn(train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int, c: int) -> np.ndarray:
    """One query at a time, in float64; equal distances in the order of the training rows."""
    mean = train.astype(np.float64).mean(0)
    keys = train - mean
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    votes = np.zeros((len(test), c))
    for i, row in enumerate(test.astype(np.float64)):
        query = (row - mean) / np.linalg.norm(row - mean)
        order = np.argsort(np.linalg.norm(keys - query, axis=1), kind="stable")[:k]
        votes[i] = np.bincount(labels[order], minlength=c) / k
    return votes


def data(n: int, m: int, d: int, c: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=g)
    centres = torch.randn(c, d, generator=g)
    train = centres[labels] + 2 * torch.randn(n, d, generator=g) + 3
    test = centres[torch.randint(c, (m,), generator=g)] + 2 * torch.randn(m, d, generator=g) + 3
    return train, labels, test


FORMATS = [(torch.float32,), (torch.bfloat16, torch.float32)]


@pytest.fixture(params=FORMATS, ids=["float32", "bfloat16"])
def any_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with each format of the inexact products in turn, on any processor."""
    search = partial(NeighbourSearch, formats=request.param)
    monkeypatch.setattr(
        neighbours,
        "NeighbourSearch",
        lambda train, centring, *, memory, formats: search(train, centring, memory=memory),
    )


@pytest.mark.usefixtures("any_format")
@pytest.mark.parametrize("k", [1, 5, 20])
def test_votes_equal_a_float64_loop(k: int) -> None:
    train, labels, test = data(700, 90, 24, 4)
    outcome = knn(train, labels, test, n_classes=4, n_neighbors=k)
    expected = slow_knn(train.numpy(), labels.numpy(), test.numpy(), k, 4)
    np.testing.assert_array_equal(outcome.probabilities, expected)
    np.testing.assert_array_equal(outcome.predicted, expected.argmax(1))


@pytest.mark.usefixtures("any_format")
def test_near_ties_are_decided_in_float64() -> None:
    # Training rows that float32 products cannot tell apart: the same direction, off by 1e-6.
    g = torch.Generator().manual_seed(1)
    base = torch.randn(40, 32, generator=g)
    train = base.repeat(20, 1) * (1 + 1e-6 * torch.randn(800, 1, generator=g)) + 1e-6 * torch.randn(
        800, 32, generator=g
    )
    labels = torch.randint(3, (800,), generator=g)
    test = base[:25] + 0.1 * torch.randn(25, 32, generator=g)
    outcome = knn(train, labels, test, n_classes=3, n_neighbors=7)
    assert outcome.info["rechecked_pairs"] > 0
    np.testing.assert_array_equal(
        outcome.probabilities, slow_knn(train.numpy(), labels.numpy(), test.numpy(), 7, 3)
    )


@pytest.mark.usefixtures("any_format")
@pytest.mark.parametrize("crowd", [6000, 300], ids=["all rows", "one query of many"])
def test_more_near_ties_than_are_kept_are_all_looked_at(crowd: int) -> None:
    g = torch.Generator().manual_seed(2)
    direction = torch.randn(16, generator=g)
    train = direction + 1e-3 * torch.randn(crowd, 16, generator=g)
    train[::2] -= 2 * direction
    test = direction + 1e-3 * torch.randn(12, 16, generator=g)
    if crowd < 6000:
        train = torch.cat([train, 3 * torch.randn(3000, 16, generator=g)])
        test = torch.cat([3 * torch.randn(60, 16, generator=g), direction[None]])
    labels = torch.randint(4, (len(train),), generator=g)
    outcome = knn(train, labels, test, n_classes=4, n_neighbors=9)
    expected = slow_knn(train.numpy(), labels.numpy(), test.numpy(), 9, 4)
    np.testing.assert_array_equal(outcome.probabilities, expected)


@pytest.mark.usefixtures("any_format")
def test_copies_of_one_image_vote_in_the_order_of_the_rows() -> None:
    row = torch.tensor([[1.0, 2.0, 0.5]])
    train = torch.cat([row.repeat(6, 1), -row, torch.tensor([[3.0, -1.0, 0.0]])])
    labels = torch.tensor([2, 2, 1, 1, 0, 0, 0, 0])
    outcome = knn(train, labels, row, n_classes=3, n_neighbors=2)
    assert outcome.probabilities.tolist() == [[0.0, 0.0, 1.0]]


def test_equal_votes_go_to_the_lowest_class_id() -> None:
    train = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-5.0, 0.0], [-5.0, 0.5]])
    outcome = knn(train, torch.tensor([2, 1, 0, 0]), torch.tensor([[1.0, 0.0]]), n_classes=3, n_neighbors=2)
    assert outcome.predicted.tolist() == [1]


def test_with_few_training_images_fewer_neighbors_vote_and_it_is_said() -> None:
    train, _, test = data(10, 3, 4, 2)
    labels = torch.tensor([0, 1] * 5)
    outcome = knn(train, labels, test, n_classes=2)
    assert outcome.info["warnings"] == ["2 instead of 20 neighbors vote: there are 10 training images"]
    expected = knn(train, labels, test, n_classes=2, n_neighbors=2)
    np.testing.assert_array_equal(outcome.probabilities, expected.probabilities)
    assert knn(train, labels, test, n_classes=2, n_neighbors=10).probabilities.shape == (3, 2)


@pytest.mark.usefixtures("any_format")
def test_chunks_do_not_change_the_result() -> None:
    train, labels, test = data(500, 40, 8, 3)
    whole = knn(train, labels, test, n_classes=3)
    pieces = knn(train, labels, test, n_classes=3, memory=1)
    np.testing.assert_array_equal(whole.probabilities, pieces.probabilities)


@pytest.mark.usefixtures("any_format")
def test_ranked_neighbours_come_nearest_first() -> None:
    train, _, test = data(500, 40, 8, 3)
    centring = Centring.of(train)
    found = nearest(train, test, k=9, centring=centring, ranked=True)
    similarity = centring.apply(test) @ centring.apply(train).T
    expected = similarity.argsort(dim=1, descending=True, stable=True)[:, :9]
    assert torch.equal(found.index, expected)
    torch.testing.assert_close(found.cosine, similarity.gather(1, expected), rtol=0, atol=1e-15)
    plain = nearest(train, test, k=9, centring=centring)
    assert plain.cosine.shape == (len(test), 0)
    assert torch.equal(found.index.sort().values, plain.index.sort().values)


@pytest.mark.usefixtures("any_format")
def test_crowded_queries_have_their_exact_cosines() -> None:
    train, _, test = data(500, 40, 8, 3)
    train = train[:7].repeat(60, 1)  # more equal rows than are kept
    centring = Centring.of(train)
    found = nearest(train, test, k=9, centring=centring, ranked=True)
    similarity = centring.apply(test) @ centring.apply(train).T
    expected = similarity.topk(9, dim=1).values
    torch.testing.assert_close(found.cosine, expected, rtol=0, atol=1e-15)


def test_rows_close_to_a_far_mean_keep_their_direction() -> None:
    # Centring in float32 alone would leave noise of these rows.
    g = torch.Generator().manual_seed(3)
    train = 1e-4 * torch.randn(400, 8, generator=g) + 100
    labels = torch.randint(3, (400,), generator=g)
    outcome = knn(train, labels, train[:40], n_classes=3, n_neighbors=5)
    expected = slow_knn(train.numpy(), labels.numpy(), train[:40].numpy(), 5, 3)
    np.testing.assert_array_equal(outcome.probabilities, expected)


def test_a_class_too_small_to_win_a_vote_is_a_warning() -> None:
    train, labels = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) // 4
    silent, warned = (knn(train, labels, train, n_classes=3, n_neighbors=k) for k in (7, 8))
    assert "warnings" not in silent.info
    assert "the smallest class has 4 training images" in warned.info["warnings"][0]
