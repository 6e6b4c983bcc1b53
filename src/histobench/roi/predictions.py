"""Predictions: what a protocol gives for every test image; all metrics are views of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """Per-sample class probabilities of one task on one test set.

    `predicted` is stored because a rule may break ties by itself; by default it is the first maximum.
    `info` is what the task wants to say about itself (plain JSON values).
    """

    probabilities: NDArray[np.float64]  # [n, c], rows sum to one
    labels: NDArray[np.int64]  # [n]
    predicted: NDArray[np.int64]  # [n]
    classes: tuple[str, ...]
    img_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    episodes: NDArray[np.int64] | None = None  # [n] few-shot: how many episodes the image took part in
    info: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)  # column -> [n], "" where not known

    def __len__(self) -> int:
        return len(self.labels)
