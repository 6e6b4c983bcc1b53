"""Which few-shot settings a training set allows, and which of its images support each episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Episodes:
    """E episodes of one setting. `classes` ascend within an episode; `supports` are training rows."""

    classes: Ints  # [E, way]
    supports: Ints  # [E, way, shot]

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, some: slice | Ints) -> Episodes:
        """Some of the episodes."""
        return Episodes(self.classes[some], self.supports[some])

    @classmethod
    def of(cls, supports: Sequence[Sequence[Sequence[int]]], train_labels: Ints) -> Episodes:
        """Episodes from explicit supports [E][way][shot], in any order of classes."""
        rows = np.asarray(supports, dtype=np.int64)
        classes = train_labels[rows[:, :, 0]]
        order = np.argsort(classes, axis=1)
        return cls(np.take_along_axis(classes, order, 1), np.take_along_axis(rows, order[:, :, None], 1))


class EpisodeSampler:
    """Draws episodes; those of a setting depend on the seed, the way and the shot, not on other settings."""

    def __init__(self, train_labels: Ints, *, seed: int) -> None:
        self.seed = seed
        self.classes, counts = np.unique(train_labels, return_counts=True)
        self.members = [np.flatnonzero(train_labels == label) for label in self.classes]
        self.smallest = int(counts.min())

    def draw(self, *, way: int, shot: int, n_iter: int) -> Episodes:
        """`n_iter` episodes: classes and images without replacement within an episode."""
        rng = np.random.default_rng([self.seed, way, shot])
        classes = np.empty((n_iter, way), dtype=np.int64)
        supports = np.empty((n_iter, way, shot), dtype=np.int64)
        for e in range(n_iter):
            chosen = np.sort(rng.choice(len(self.classes), size=way, replace=False))
            classes[e] = self.classes[chosen]
            for k, label in enumerate(chosen):
                supports[e, k] = rng.choice(self.members[label], size=shot, replace=False)
        return Episodes(classes, supports)


def possible_settings(
    count: int, smallest: int, n_way: Sequence[int], n_shot: Sequence[int], *, use_all_way: bool
) -> tuple[list[int], list[int], list[str]]:
    """The ways and shots that a training set allows, ascending, and a warning for each kind left out.

    It has `count` classes, the smallest of which has `smallest` images.
    """
    asked = set(n_way) | ({count} if use_all_way else set())
    ways = sorted(way for way in asked if 2 <= way <= count)
    shots = sorted({shot for shot in n_shot if 1 <= shot <= smallest})
    warnings = []
    if wrong := sorted(asked - set(ways)):
        warnings.append(f"few-shot ways {_listed(wrong)} left out: the training set has {count} classes")
    if wrong := sorted(set(n_shot) - set(shots)):
        warnings.append(f"few-shot shots {_listed(wrong)} left out: the smallest class has {smallest} images")
    return ways, shots, warnings


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
