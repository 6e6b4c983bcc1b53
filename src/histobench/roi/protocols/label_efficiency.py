"""Label efficiency: how much of the training set a linear probe needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

SHARES = (0.01, 0.05, 0.10, 0.25, 0.50, 1.0)
SEEDS = 5


def nested_parts(
    labels: NDArray[np.int64], *, shares: tuple[float, ...] = SHARES, seeds: int = SEEDS, seed: int = 0
) -> Iterator[tuple[float, list[torch.Tensor]]]:
    """For every share the rows of each seed: stratified, at least one image per class, nested in the next.

    >>> parts = dict(nested_parts(np.repeat([0, 1], 100), seeds=1))
    >>> len(parts[0.05][0]), set(parts[0.05][0].tolist()) <= set(parts[0.25][0].tolist())
    (10, True)
    """
    orders = [
        [
            np.random.default_rng([seed, run, label]).permutation(np.flatnonzero(labels == label))
            for label in np.unique(labels)
        ]
        for run in range(seeds)
    ]
    for share in shares:
        # All of the training set is the same set for every seed.
        used = orders if share < 1 else orders[:1]
        yield (
            share,
            [
                torch.from_numpy(
                    np.sort(np.concatenate([rows[: max(1, round(share * len(rows)))] for rows in order]))
                )
                for order in used
            ],
        )


def setting_of(share: float) -> str:
    """The name of a share in file names.

    >>> setting_of(0.05), setting_of(1.0)
    ('5pct', '100pct')
    """
    return f"{100 * share:g}pct"
