from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from builders import played
from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols.few_shot import (
    MEMORY,
    EpisodeSampler,
    FewShotSetting,
    Queries,
    few_shot_settings,
    possible_settings,
)


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 12, generator=g)
    labels, test_labels = torch.arange(100) % 5, torch.randint(5, (64,), generator=g)
    train = centres[labels] + torch.randn(100, 12, generator=g) + 5
    test = centres[test_labels] + torch.randn(64, 12, generator=g) + 5
    return train, labels, test, test_labels


def slow_episode(train: np.ndarray, supports: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """One episode by the definition, query by query; supports [way, shot] are training rows."""
    mean = np.mean([train[i] for i in supports.ravel()], axis=0)
    prototypes = []
    for rows in supports:
        unit = [(train[i] - mean) / np.linalg.norm(train[i] - mean) for i in rows]
        prototypes.append(np.mean(unit, axis=0))
    out = []
    for q in queries:
        unit = (q - mean) / np.linalg.norm(q - mean)
        scores = np.exp([-np.linalg.norm(unit - p) for p in prototypes])
        out.append(scores / scores.sum())
    return np.array(out)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "shot"), [(2, 1), (3, 4), (5, 2)])
@pytest.mark.parametrize("memory", [1, 2**28])
def test_every_episode_equals_a_loop(
    way: int, shot: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEMORY, "cpu", memory)
    train, labels, test, test_labels = data()
    episodes = EpisodeSampler(labels.numpy(), seed=3).draw(way=way, shot=shot, n_iter=7)
    setting = played(Queries.of(train, test, test_labels), episodes, n_classes=5)
    total, count = np.zeros((64, 5)), np.zeros(64, dtype=int)
    for e, (classes, supports) in enumerate(zip(episodes.classes, episodes.supports, strict=True)):
        mine = np.isin(test_labels.numpy(), classes)
        p = slow_episode(train.double().numpy(), supports, test.double().numpy()[mine])
        local = np.searchsorted(classes, test_labels.numpy()[mine])
        for name, score in evaluate(p, local, classes=[str(k) for k in classes]).scores.items():
            assert setting.episode_metrics[name][e] == pytest.approx(score.value, abs=1e-6), name
        total[np.ix_(mine, classes)] += p
        count += mine
    np.testing.assert_array_equal(setting.episodes_per_image, count)
    seen = count > 0
    np.testing.assert_allclose(
        setting.outcome.probabilities[seen], total[seen] / count[seen, None], atol=1e-7
    )
    assert np.isnan(setting.outcome.probabilities[~seen]).all()
    assert (setting.outcome.predicted[~seen] == -1).all()


FOUR = [(2, 1), (2, 4), (3, 1), (3, 4)]


def run(settings: list[tuple[int, int]], given: tuple = data(), **options: int) -> list[FewShotSetting]:
    return list(few_shot_settings(*given, n_classes=5, settings=settings, **{"n_iter": 3, **options}))


def test_impossible_ways_and_shots_are_left_out_by_name() -> None:
    """The way of all classes is added to those that are listed."""
    assert possible_settings(5, 20, [2], [1, 4], use_all_way=True) == ([2, 5], [1, 4], [])
    assert possible_settings(5, 20, [2], [1], use_all_way=False) == ([2], [1], [])
    ways, shots, warnings = possible_settings(5, 20, [2, 7, 9], [1, 20, 32, 64], use_all_way=True)
    assert (ways, shots) == ([2, 5], [1, 20])
    assert warnings == [
        "ways 7, 9 left out: the training set has 5 classes",
        "shots 32, 64 left out: the smallest class has fewer training images",
    ]


def test_the_seed_decides_and_other_settings_do_not() -> None:
    (alone,) = run([(3, 2)], seed=5)
    same = next(s for s in run([(2, 1), (3, 2), (4, 4)], seed=5) if (s.way, s.shot) == (3, 2))
    np.testing.assert_array_equal(alone.episodes.supports, same.episodes.supports)
    np.testing.assert_array_equal(alone.outcome.probabilities, same.outcome.probabilities)
    (other,) = run([(3, 2)], seed=6)
    assert (other.episodes.supports != alone.episodes.supports).any()


def test_supports_are_distinct_images_of_their_class() -> None:
    labels = np.arange(60) % 3
    episodes = EpisodeSampler(labels, seed=0).draw(way=2, shot=20, n_iter=10)
    assert (labels[episodes.supports] == episodes.classes[:, :, None]).all()
    assert all(len(set(row)) == 20 for episode in episodes.supports for row in episode)
    assert (np.diff(episodes.classes, axis=1) > 0).all()


def test_a_class_that_is_only_in_the_test_set_is_not_scored() -> None:
    train, labels, test, test_labels = data()
    keep = labels != 4
    (full,) = run([(4, 1)], (train[keep], labels[keep], test, test_labels), n_iter=2)
    assert (full.episodes_per_image[test_labels.numpy() == 4] == 0).all()
    assert (full.episodes_per_image[test_labels.numpy() != 4] == 2).all()


def assert_same(
    first: list[FewShotSetting], second: list[FewShotSetting], *, metrics: float, mean: float
) -> None:
    for a, b in zip(first, second, strict=True):
        for name, values in a.episode_metrics.items():
            np.testing.assert_allclose(b.episode_metrics[name], values, rtol=0, atol=metrics, err_msg=name)
        np.testing.assert_array_equal(b.votes, a.votes)
        np.testing.assert_array_equal(b.episodes_per_image, a.episodes_per_image)
        np.testing.assert_array_equal(b.probabilities is None, a.probabilities is None)
        np.testing.assert_allclose(b.outcome.probabilities, a.outcome.probabilities, rtol=0, atol=mean)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_the_number_of_threads_or_processes_does_not_change_a_bit(
    processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processes and sys.platform != "linux":
        pytest.skip("processes are copies of this one")
    monkeypatch.setitem(MEMORY, "cpu", 2**16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(FOUR)
        torch.set_num_threads(3)
        if processes:
            monkeypatch.setattr("histobench.roi.protocols.few_shot._MANY_SCORES", 0)
        together = run(FOUR)
    finally:
        torch.set_num_threads(before)
    assert_same(alone, together, metrics=0, mean=0)


def test_columns_for_all_images_as_on_a_gpu_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compact = run(FOUR)
    monkeypatch.setattr(Queries, "_device", property(lambda _: "cuda"))
    assert_same(compact, run(FOUR), metrics=1e-9, mean=1e-9)


def test_a_test_set_without_images_of_an_episode_has_no_metrics() -> None:
    train, labels, test, test_labels = data()
    only = test_labels == 0
    (pair,) = run([(2, 1)], (train, labels, test[only], test_labels[only]), n_iter=8)
    scored = (pair.episodes.classes == 0).any(1)
    assert not scored.all()
    assert np.isfinite(pair.episode_metrics["accuracy"][scored]).all()
    assert np.isnan(pair.episode_metrics["accuracy"][~scored]).all()
    assert (pair.votes[:, ~scored] == -1).all()
