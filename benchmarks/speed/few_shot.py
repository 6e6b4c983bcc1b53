"""Few-shot, all classes, shots 1 to 256, with every metric of every episode, against a loop per episode.

python benchmarks/speed/few_shot.py easy 100000  # where the time goes: a profile, 1 thread
"""

from __future__ import annotations

import cProfile
import importlib.util
import pstats
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Row, Seconds, Setup, clock, part
from workload import Workload, easy, workload

from histobench.roi.protocols.few_shot import EpisodeSampler, FewShotSetting, few_shot_settings

SHOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EPISODES = 100
LOOP_EPISODES = 1  # of each shot: a loop takes the same time for every episode


def all_settings(
    w: Workload,
    *,
    n_way: Sequence[int] = range(2, 10),
    n_shot: Sequence[int] = SHOTS,
    n_iter: int = EPISODES,
    device: str = "cpu",
) -> list[FewShotSetting]:
    """Every setting that the training set allows."""
    smallest = int(torch.bincount(w.train_labels).min())
    settings = [(way, shot) for way in n_way for shot in n_shot if way <= w.n_classes and shot <= smallest]
    data = (w.train, w.train_labels, w.test, w.test_labels)
    return list(
        few_shot_settings(*data, n_classes=w.n_classes, settings=settings, n_iter=n_iter, device=device)
    )


def sklearn_metrics() -> Callable[..., dict[str, float]]:
    """The reference that the tests compare with: every metric by scikit-learn."""
    path = Path(__file__).parents[2] / "tests" / "roi" / "metrics" / "sklearn_reference.py"
    spec = importlib.util.spec_from_file_location("sklearn_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference


def loop_episode(
    w: Workload, supports: np.ndarray, metrics: Callable[..., dict[str, float]]
) -> dict[str, float]:
    """One episode as the ancestor does it: broadcast distances [N, C, D], then scikit-learn."""
    way, shot = supports.shape
    x = w.train[torch.from_numpy(supports.ravel())]
    mean = x.mean(0)
    x = torch.nn.functional.normalize(x - mean, dim=1)
    prototypes = x.view(way, shot, -1).mean(1)
    queries = torch.nn.functional.normalize(w.test - mean, dim=1)
    distances = (queries[:, None, :] - prototypes[None, :, :]).norm(dim=2)
    return metrics(torch.softmax(-distances, dim=1).double().numpy(), w.test_labels.numpy())


@part("few-shot")
def run(setup: Setup) -> list[Row]:
    """Every shot at the all-classes way; nothing is warm before the first call."""
    w = setup.workload
    shots = SHOTS[:4] if setup.quick else SHOTS
    episodes = 10 if setup.quick else EPISODES
    ours, result = clock(
        lambda: all_settings(w, n_way=[w.n_classes], n_shot=shots, n_iter=episodes, device=setup.device),
        device=setup.device,
    )
    metrics = sklearn_metrics()
    theirs = Seconds(0, 0)
    worst = 0.0
    sampler = EpisodeSampler(w.train_labels.numpy(), seed=0)
    for setting in result:
        supports = sampler.draw(way=w.n_classes, shot=setting.shot, n_iter=episodes).supports
        for e in range(LOOP_EPISODES):
            spent, expected = clock(lambda rows=supports[e]: loop_episode(w, rows, metrics))
            theirs += spent
            gaps = [abs(value - setting.episode_metrics[name][e]) for name, value in expected.items()]
            worst = max(worst, *gaps)
    theirs = theirs * (episodes / LOOP_EPISODES)
    count = len(result) * episodes
    note = f"{count} episodes; the loop timed on {LOOP_EPISODES} per shot; metrics differ by {worst:.0e}"
    return [Row.against("Few-shot, all classes", "loop per episode", ours, theirs, at_least=40, note=note)]


def growth(setup: Setup) -> list[Row]:
    """Four times the test images, and four times the episodes, in less than five times the time."""
    rows = []
    for label, small, large in (
        ("test images", (2500, 20), (10_000, 20)),
        ("episodes", (2500, 20), (2500, 80)),
    ):
        times = []
        for n_test, episodes in (small, large):
            w = easy(dim=256, n_train=9_000, n_test=n_test)
            options = {"n_way": [9], "n_shot": [1, 16], "n_iter": episodes, "device": setup.device}

            def job(w: Workload = w, options: dict[str, Any] = options) -> list[FewShotSetting]:
                return all_settings(w, **options)

            times.append(clock(job, repeat=3, device=setup.device)[0])
        rows.append(Row.growth(f"Few-shot, growth in {label}", times))
    return rows


def profile() -> None:
    """Print which functions take the time, on ten episodes of every way and shot."""
    torch.set_num_threads(1)
    w = workload(sys.argv[1], n_train=int(sys.argv[2]))
    profiler = cProfile.Profile()
    profiler.enable()
    all_settings(w, n_iter=10)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    profile()
