"""What a change of the image does to features and predictions, paired per image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from histobench.roi.robustness.leaving_out import Measure, mean_without, measured, units_of
from histobench.roi.robustness.neighbours import Floats, Ints
from histobench.roi.robustness.perturbations import Perturbation, Pixels

#: Features [b, d] of b decoded images.
Encode = Callable[[Sequence[Pixels]], NDArray[np.float32]]


class Change(Protocol):
    """What a change is called, whoever makes it."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def strength(self) -> int: ...


@dataclass(frozen=True)
class Stressed:
    """One perturbation: cosine to the unchanged image, share of changed predictions, loss of accuracy."""

    name: str
    family: str
    strength: int
    cosine: Measure
    flip_rate: Measure
    accuracy_drop: Measure


def stressed_features(
    images: Iterable[tuple[str, Pixels]], changes: Sequence[Perturbation], encode: Encode, *, seed: int
) -> NDArray[np.float32]:
    """Features [1 + changes, n, d] of (name, decoded image): unchanged first, then under each change.

    The random numbers of a change depend on the seed, the change and the image's name: not on other images.
    """
    rows = []
    for name, pixels in images:
        changed = [change.apply(pixels, generator_of(seed, change.name, name)) for change in changes]
        rows.append(encode([pixels, *changed]))
    return np.stack(rows, axis=1)


def stress_measures(
    features: NDArray[np.float32],
    changes: Sequence[Change],
    labels: Ints,
    groups: Ints,
    predicted: Ints,
) -> list[Stressed]:
    """Each change's effect with intervals over groups; `features` [1 + changes, n, d] as above.

    `predicted` [1 + changes, n] are labels by a classifier that was trained on unchanged images.
    """
    units = units_of(groups)
    clean, before = features[0], predicted[0]
    found = []
    for change, moved, after in zip(changes, features[1:], predicted[1:], strict=True):
        terms: dict[str, Floats] = {
            "cosine": _cosine(clean, moved),
            "flip_rate": (after != before).astype(np.float64),
            "accuracy_drop": (before == labels).astype(np.float64) - (after == labels),
        }
        measures = {
            name: measured(
                float(values.mean()),
                mean_without(values, units),
                units,
                within="share" if name == "flip_rate" else "contrast",
            )
            for name, values in terms.items()
        }
        found.append(Stressed(change.name, change.family, change.strength, **measures))
    return found


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine: Floats = np.einsum("ij,ij->i", a, b) / np.maximum(lengths, 1e-12)
    return cosine


def generator_of(seed: int, change: str, name: str) -> np.random.Generator:
    """The random numbers of one change of one image."""
    digest = hashlib.sha256(f"{seed}\0{change}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
