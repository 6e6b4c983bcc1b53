"""A seeded part of the training set for choosing, where there is no validation set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def held_out(labels: Ints, *, share: float = 0.2, seed: int = 0) -> tuple[Ints, Ints]:
    """Rows to train on and rows to choose by, the same share of every class, at least one image to train on.

    >>> train, chosen = held_out(np.array([0] * 10 + [1] * 5))
    >>> len(train), len(chosen)
    (12, 3)
    """
    rng = np.random.default_rng([seed, len(labels)])
    train: list[Ints] = []
    rest: list[Ints] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        rest.append(rows[:count])
        train.append(rows[count:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(rest))


def folds(labels: Ints, *, count: int = 5, seed: int = 0) -> list[tuple[Ints, Ints]]:
    """Stratified, seeded folds as (training rows, held-out rows); every image is held out once."""
    rng = np.random.default_rng([seed, len(labels), count])
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        fold[rows] = (np.arange(len(rows)) + rng.integers(count)) % count
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(count) if (fold == k).any()]
