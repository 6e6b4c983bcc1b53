"""Which training images support each few-shot episode."""

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

    def __getitem__(self, some: slice) -> Episodes:
        """Some of the episodes."""
        return Episodes(self.classes[some], self.supports[some])

    @property
    def alike(self) -> bool:
        """Whether all have the same classes."""
        return bool((self.classes == self.classes[:1]).all())

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
