from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols.few_shot import Episodes, EpisodeSampler, FewShotResult, Queries, few_shot


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
def test_every_episode_equals_a_loop(way: int, shot: int, memory: int) -> None:
    train, labels, test, test_labels = data()
    episodes = EpisodeSampler(labels.numpy(), seed=3).draw(way=way, shot=shot, n_iter=7)
    setting = Queries.of(train, test, test_labels).run(episodes, n_classes=5, memory=memory)
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


def run(**options: object) -> FewShotResult:
    return few_shot(*data(), n_classes=5, n_iter=3, **options)  # type: ignore[arg-type]


def test_the_all_classes_way_is_added_to_the_listed_ones() -> None:
    result = run(n_way=[2], n_shot=[1, 4])
    assert [s.name for s in result.settings] == ["2way_1shot", "2way_4shot", "5way_1shot", "5way_4shot"]
    assert not result.warnings
    assert [s.way for s in run(n_way=[2], n_shot=[1], use_all_way=False).settings] == [2]


def test_impossible_ways_and_shots_are_left_out_by_name() -> None:
    result = run(n_way=[2, 7, 9], n_shot=[1, 20, 32, 64])
    assert [s.name for s in result.settings] == ["2way_1shot", "2way_20shot", "5way_1shot", "5way_20shot"]
    assert result.warnings == [
        "ways 7, 9 left out: the training set has 5 classes",
        "shots 32, 64 left out: the smallest class has 20 training images",
    ]


def test_the_seed_decides_and_other_settings_do_not() -> None:
    alone = run(n_way=[3], n_shot=[2], use_all_way=False, seed=5).settings[0]
    among = run(n_way=[2, 3, 4], n_shot=[1, 2, 4], seed=5)
    same = next(s for s in among.settings if s.name == "3way_2shot")
    np.testing.assert_array_equal(alone.episodes.supports, same.episodes.supports)
    np.testing.assert_array_equal(alone.outcome.probabilities, same.outcome.probabilities)
    other = run(n_way=[3], n_shot=[2], use_all_way=False, seed=6).settings[0]
    assert (other.episodes.supports != alone.episodes.supports).any()


def test_supports_are_distinct_images_of_their_class() -> None:
    labels = np.arange(60) % 3
    episodes = EpisodeSampler(labels, seed=0).draw(way=2, shot=20, n_iter=10)
    assert (labels[episodes.supports] == episodes.classes[:, :, None]).all()
    assert all(len(set(row)) == 20 for episode in episodes.supports for row in episode)
    assert (np.diff(episodes.classes, axis=1) > 0).all()


def test_explicit_supports_may_list_classes_in_any_order() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2])
    episodes = Episodes.of([[[5, 2], [0, 3]]], labels)
    assert episodes.classes.tolist() == [[0, 2]]
    assert episodes.supports.tolist() == [[[0, 3], [5, 2]]]


def test_a_class_that_is_only_in_the_test_set_is_not_scored() -> None:
    train, labels, test, test_labels = data()
    keep = labels != 4
    result = few_shot(
        train[keep], labels[keep], test, test_labels, n_classes=5, n_iter=2, n_way=[2], n_shot=[1]
    )
    full = result.settings[-1]
    assert full.way == 4
    assert (full.episodes_per_image[test_labels.numpy() == 4] == 0).all()
    assert (full.episodes_per_image[test_labels.numpy() != 4] == 2).all()


def assert_same(first: FewShotResult, second: FewShotResult, *, metrics: float, mean: float) -> None:
    for a, b in zip(first.settings, second.settings, strict=True):
        for name, values in a.episode_metrics.items():
            np.testing.assert_allclose(b.episode_metrics[name], values, rtol=0, atol=metrics, err_msg=name)
        np.testing.assert_array_equal(b.votes, a.votes)
        np.testing.assert_array_equal(b.episodes_per_image, a.episodes_per_image)
        np.testing.assert_array_equal(b.probabilities is None, a.probabilities is None)
        np.testing.assert_allclose(b.outcome.probabilities, a.outcome.probabilities, rtol=0, atol=mean)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(n_way=[2, 3], n_shot=[1, 4], memory=2**16)
        torch.set_num_threads(3)
        together = run(n_way=[2, 3], n_shot=[1, 4], memory=2**16)
    finally:
        torch.set_num_threads(before)
    assert_same(alone, together, metrics=0, mean=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are copies of this one")
def test_processes_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(n_way=[2, 3], n_shot=[1, 4], memory=2**16)
        torch.set_num_threads(3)
        monkeypatch.setattr("histobench.roi.protocols.few_shot._MANY_SCORES", 0)
        together = run(n_way=[2, 3], n_shot=[1, 4], memory=2**16)
    finally:
        torch.set_num_threads(before)
    assert_same(alone, together, metrics=0, mean=0)


def test_columns_for_all_images_as_on_a_gpu_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compact = run(n_way=[2, 3], n_shot=[1, 4])
    monkeypatch.setattr(Queries, "_device", property(lambda _: "cuda"))
    assert_same(compact, run(n_way=[2, 3], n_shot=[1, 4]), metrics=1e-9, mean=1e-9)


def test_a_test_set_without_images_of_an_episode_has_no_metrics() -> None:
    train, labels, test, test_labels = data()
    only = test_labels == 0
    result = few_shot(
        train, labels, test[only], test_labels[only], n_classes=5, n_iter=8, n_way=[2], n_shot=[1]
    )
    pair = result.settings[0]
    scored = (pair.episodes.classes == 0).any(1)
    assert not scored.all()
    assert np.isfinite(pair.episode_metrics["accuracy"][scored]).all()
    assert np.isnan(pair.episode_metrics["accuracy"][~scored]).all()
    assert (pair.votes[:, ~scored] == -1).all()
