"""A seeded part of the training set for choosing, where there is no validation set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.split import assign_groups

Ints = NDArray[np.int64]


def held_out(
    labels: Ints, groups: Sequence[str] | None = None, *, share: float = 0.2, seed: int = 0
) -> tuple[Ints, Ints]:
    """Rows to train on and rows to choose by: about the same share of every class, all classes in training.

    With `groups` (patients, slides; "" for an image that is a group of its own) no group is in both parts;
    nothing is held out where every class has a single group.

    >>> train, chosen = held_out(np.array([0] * 10 + [1] * 5))
    >>> len(train), len(chosen)
    (12, 3)
    >>> train, chosen = held_out(np.repeat([0, 1], 6), list("aabbcc") + list("ddeeff"))
    >>> len(chosen), len({"aabbccddeeff"[row] for row in chosen})
    (4, 2)
    """
    if groups is not None:
        return _held_out_groups(labels, groups, share=share, seed=seed)
    rng = np.random.default_rng([seed, len(labels)])
    train: list[Ints] = []
    rest: list[Ints] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        rest.append(rows[:count])
        train.append(rows[count:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(rest))


def folds(
    labels: Ints, groups: Sequence[str] | None = None, *, count: int = 5, seed: int = 0
) -> list[tuple[Ints, Ints]]:
    """Stratified, seeded folds as (training rows, held-out rows); every image is held out once.

    With `groups` whole groups are held out; there are no more folds than groups.
    """
    if groups is not None:
        unit_of, counts = _units(labels, groups)
        count = min(count, len(counts))
        fold = assign_groups(counts, [1 / count] * count, seed=seed)[unit_of]
    else:
        rng = np.random.default_rng([seed, len(labels), count])
        fold = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            fold[rows] = (np.arange(len(rows)) + rng.integers(count)) % count
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(count) if (fold == k).any()]


def _held_out_groups(labels: Ints, groups: Sequence[str], *, share: float, seed: int) -> tuple[Ints, Ints]:
    unit_of, counts = _units(labels, groups)
    chosen = assign_groups(counts, [1 - share, share], seed=seed) == 1
    for label in range(counts.shape[1]):
        # A class that nothing is trained on cannot be predicted, and would make every choice look alike.
        if not counts[~chosen, label].any():
            bearers = np.flatnonzero(counts[:, label])
            chosen[bearers[np.argmin(counts[bearers].sum(1))]] = False
    return np.flatnonzero(~chosen[unit_of]), np.flatnonzero(chosen[unit_of])


def _units(labels: Ints, groups: Sequence[str]) -> tuple[Ints, NDArray[np.float64]]:
    """The unit of each image, and the images of each unit by class [units, classes]."""
    keys = [f"g{group}" if group else f"i{row:09d}" for row, group in enumerate(groups)]
    unit_of = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    class_of = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros((int(unit_of.max()) + 1, int(class_of.max()) + 1))
    np.add.at(counts, (unit_of, class_of), 1)
    return unit_of, counts
