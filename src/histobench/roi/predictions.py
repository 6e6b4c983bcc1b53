"""Predictions: what a protocol gives for every test image; all metrics are views of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """Per-sample class probabilities of one task on one test set.

    `predicted` is stored because a rule may break ties by itself; by default it is the first maximum.
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

    @property
    def n_columns(self) -> int:
        """How many classes there are, by the class map, the probabilities or the labels."""
        seen = max(int(self.labels.max(initial=-1)), int(self.predicted.max(initial=-1))) + 1
        return max(len(self.classes), self.probabilities.shape[1], seen)


@dataclass(frozen=True)
class TargetPredictions:
    """Predictions of a target that is not one class per image: numbers, or risks of survival times.

    The truth of survival is (time, event); `weights` are those of Uno's C.
    """

    kind: str
    columns: tuple[str, ...]  # of the truth
    truth: NDArray[np.float64]  # [n, columns]
    predicted_columns: tuple[str, ...]
    predicted: NDArray[np.float64]  # [n, predicted columns]
    img_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    weights: NDArray[np.float64] | None = None  # [n]
    info: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.img_names)


#: How many tiles of each patient are named, those with the most attention first.
TOP_TILES = 10


@dataclass(frozen=True)
class TileAttention:
    """How much each test tile entered the prediction of its patient, as a mean over the runs."""

    img_names: tuple[str, ...]
    patients: tuple[str, ...]
    patient_of: NDArray[np.int64]  # [n], a row of the patients' predictions
    weights: NDArray[np.float64]  # [n], those of a patient sum to one
    coords: NDArray[np.float64] | None = None  # [n, 2], x and y on the slide; NaN where not known
    slides: tuple[str, ...] = ()
    slide_of: NDArray[np.int64] | None = None  # [n]

    def top_tiles(self) -> Iterator[tuple[str, int, str, float]]:
        """(patient, rank, image, weight) of the tiles with the most attention, patient by patient."""
        order = np.lexsort((-self.weights, self.patient_of))
        starts = np.searchsorted(self.patient_of[order], np.arange(len(self.patients)))
        for patient, rows in enumerate(np.split(order, starts[1:])):
            for rank, row in enumerate(rows[:TOP_TILES], start=1):
                yield self.patients[patient], rank, self.img_names[row], float(self.weights[row])
