"""Which test regions become cases: half from those the strong encoder gets wrong, all by known chances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """The chosen rows in ascending order, and each one's chance of having been chosen."""

    rows: Ints  # [m]
    probability: Floats  # [m]


def select_cases(labels: Ints, wrong: NDArray[np.bool_], *, count: int, seed: int = 0) -> Selection:
    """`count` of the rows: half from the `wrong` ones (all if fewer), as even over classes as can be.

    Within each half and class the draw is simple random sampling. Places that cannot be shared evenly go to
    classes by lot, so that no row has the chance 0; the chance is taken over that lot, too, which makes the
    weights 1 / probability unbiased.

    >>> labels, wrong = np.array([0, 0, 0, 1, 1, 1]), np.array([1, 0, 0, 0, 0, 0], dtype=bool)
    >>> chosen = select_cases(labels, wrong, count=3)
    >>> len(chosen.rows), float(chosen.probability[0])
    (3, 1.0)
    """
    generator = np.random.default_rng([seed, len(labels), count])
    right = int((~wrong).sum())
    from_wrong = min(int(wrong.sum()), max(count // 2, count - right))
    parts = [
        _draw(np.flatnonzero(wrong), labels, from_wrong, generator),
        _draw(np.flatnonzero(~wrong), labels, min(count - from_wrong, right), generator),
    ]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows)
    return Selection(rows[order], np.concatenate([part.probability for part in parts])[order])


def even_shares(sizes: Ints, count: int) -> tuple[Ints, Ints]:
    """How many of each class everybody gets for certain, and which classes draw lots for one place more.

    >>> even_shares(np.array([1, 5, 5]), 6)
    (array([1, 2, 2]), array([1, 2]))
    """
    certain = np.zeros(len(sizes), dtype=np.int64)
    left = min(count, int(sizes.sum()))
    while True:
        waiting = np.flatnonzero(certain < sizes)
        if not len(waiting) or left < len(waiting):
            return certain, waiting
        step = min(int((sizes - certain)[waiting].min()), left // len(waiting))
        certain[waiting] += step
        left -= step * len(waiting)


def _draw(pool: Ints, labels: Ints, count: int, generator: np.random.Generator) -> Selection:
    if not len(pool) or count <= 0:
        return Selection(np.zeros(0, dtype=np.int64), np.zeros(0))
    classes, sizes = np.unique(labels[pool], return_counts=True)
    certain, waiting = even_shares(sizes, count)
    left = min(count, len(pool)) - int(certain.sum())
    expected = certain.astype(np.float64)
    if left:
        expected[waiting] += left / len(waiting)
        certain[generator.choice(waiting, size=left, replace=False)] += 1
    rows: list[Ints] = []
    chances: list[Floats] = []
    for label, size, places, mean in zip(classes, sizes, certain, expected, strict=True):
        members = pool[labels[pool] == label]
        rows.append(np.sort(generator.choice(members, size=int(places), replace=False)))
        chances.append(np.full(int(places), mean / size))
    return Selection(np.concatenate(rows), np.concatenate(chances))
