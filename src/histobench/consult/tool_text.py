"""The words in which the encoder tools answer, the same in every arm, and how a program reads them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_COSINE = re.compile(r", cosine -?\d+\.\d+$")
_PERCENTILE = re.compile(r"^similarity of the nearest: percentile (\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class Neighbour:
    """A training region near the case: its class, the hash of its content, and its cosine where known."""

    label: str
    image: str
    cosine: float = float("nan")


ALIAS_LENGTH = 8


def alias(case: str, image: str) -> str:
    """The name of a training region in the answers about one case."""
    return hashlib.sha256(f"{case} {image}".encode()).hexdigest()[:ALIAS_LENGTH]


def prediction_text(
    order: Sequence[int] | NDArray[np.int64],
    probabilities: Sequence[float] | NDArray[np.float64],
    names: Sequence[str],
) -> str:
    return ", ".join(f"{names[label]} {probabilities[label]:.2f}" for label in order)


def neighbours_text(
    neighbours: Sequence[Neighbour], percentile: float | None = None, *, case: str = ""
) -> str:
    """A line for each neighbour (rank, label, id), and how similar the nearest one is, as a percentile."""
    if not neighbours:
        return "no training region can be shown"
    lines = [
        f"{rank}. {neighbour.label}, image {alias(case, neighbour.image) if case else neighbour.image}"
        for rank, neighbour in enumerate(neighbours, start=1)
    ]
    if percentile is not None:
        lines.append(f"similarity of the nearest: percentile {percentile:.0f} among test regions")
    return "\n".join(lines)


def record_text(label: str, right: int, said: int) -> str:
    share = f" ({100 * right / said:.0f} %)" if said else ""
    return f"On validation regions it said {label} {said} times and was right {right} times{share}."


def read_prediction(text: str, names: Sequence[str]) -> NDArray[np.float64]:
    """What an answer of `predict` or `zero_shot` gives to each class; 0 where it names none."""
    found = {label: value for _, label, value in _entries(text, names)}
    return np.array([found.get(label, 0.0) for label in range(len(names))])


def first_class(text: str, names: Sequence[str]) -> int | None:
    return min(_entries(text, names), default=(0, None, 0.0))[1]


def read_neighbours(text: str) -> list[Neighbour]:
    """The neighbours that an answer names, nearest first; also those of 0.2, which reported the cosine."""
    found = []
    for line in text.splitlines():
        said, mark, image = line.partition(". ")[2].rpartition(", image ")
        if mark:
            label, _, cosine = said.rpartition(", cosine ") if _COSINE.search(said) else (said, "", "nan")
            found.append(Neighbour(label, image, float(cosine)))
    return found


def read_percentile(text: str) -> float | None:
    found = _PERCENTILE.search(text)
    return float(found[1]) if found else None


def neighbour_votes(text: str, names: Sequence[str]) -> NDArray[np.float64]:
    labels = [neighbour.label for neighbour in read_neighbours(text)]
    return np.array([labels.count(name) for name in names], dtype=np.float64)


def _entries(text: str, names: Sequence[str]) -> list[tuple[int, int, float]]:
    """(place in the text, class, probability); a name may be part of another one, or hold commas."""
    text = f", {text.strip()}, "
    found = []
    for label, name in enumerate(names):
        place = text.find(f", {name} 0.")
        place = place if place >= 0 else text.find(f", {name} 1.")
        if place >= 0:
            found.append((place, label, float(text[place + len(name) + 3 :].partition(", ")[0])))
    return found
