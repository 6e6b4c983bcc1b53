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


#: Characters of the name under which a neighbour is shown.
ALIAS_LENGTH = 8


def alias(case: str, image: str) -> str:
    """The name of a training region in the answers about one case.

    It differs from case to case: a region that an encoder finds near to everything could else be recognized.

    >>> alias("0a", "3f") == alias("0b", "3f")
    False
    """
    return hashlib.sha256(f"{case} {image}".encode()).hexdigest()[:ALIAS_LENGTH]


def prediction_text(
    order: Sequence[int] | NDArray[np.int64],
    probabilities: Sequence[float] | NDArray[np.float64],
    names: Sequence[str],
) -> str:
    """Classes with their probabilities, in this order.

    >>> prediction_text([1, 0], [0.25, 0.75], ["MUS", "STR"])
    'STR 0.75, MUS 0.25'
    """
    return ", ".join(f"{names[label]} {probabilities[label]:.2f}" for label in order)


def neighbours_text(
    neighbours: Sequence[Neighbour], percentile: float | None = None, *, case: str = ""
) -> str:
    """A line for each neighbour (rank, label, id), and how similar the nearest one is, as a percentile.

    The percentile is that among all test regions by the same encoder. It is one number for the whole list:
    several of them together tell encoders apart. `case` is whose neighbours these are; without it regions
    have their own names.

    >>> print(neighbours_text([Neighbour("STR", "3fa8")], 43.2))
    1. STR, image 3fa8
    similarity of the nearest: percentile 43 among test regions
    """
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
    """How often the tool was right on validation regions when it said this class.

    >>> record_text("STR", 9, 10)
    'On validation regions it said STR 10 times and was right 9 times (90 %).'
    """
    share = f" ({100 * right / said:.0f} %)" if said else ""
    return f"On validation regions it said {label} {said} times and was right {right} times{share}."


def read_prediction(text: str, names: Sequence[str]) -> NDArray[np.float64]:
    """The probability that an answer of `predict` or `zero_shot` gives to each class; 0 where it names none.

    >>> read_prediction("STR 0.75, MUS 0.25", ["MUS", "STR", "ADI"]).tolist()
    [0.25, 0.75, 0.0]
    """
    found = np.zeros(len(names))
    for _, label, value in _entries(text, names):
        found[label] = value
    return found


def first_class(text: str, names: Sequence[str]) -> int | None:
    """The class that an answer of `predict` names first.

    >>> first_class("STR 0.50, MUS 0.50", ["MUS", "STR"])
    1
    """
    return min(_entries(text, names), default=(0, None, 0.0))[1]


def read_neighbours(text: str) -> list[Neighbour]:
    """The neighbours that an answer names, nearest first; also those of 0.2, which reported the cosine.

    >>> read_neighbours("1. loose, image of it, image 3fa8")
    [Neighbour(label='loose, image of it', image='3fa8', cosine=nan)]
    >>> read_neighbours("1. STR, cosine 0.912, image 3fa8")
    [Neighbour(label='STR', image='3fa8', cosine=0.912)]
    """
    found = []
    for line in text.splitlines():
        said, mark, image = line.partition(". ")[2].rpartition(", image ")
        if mark:
            label, _, cosine = said.rpartition(", cosine ") if _COSINE.search(said) else (said, "", "nan")
            found.append(Neighbour(label, image, float(cosine)))
    return found


def read_percentile(text: str) -> float | None:
    """The percentile in an answer of `neighbours`; None where it tells none.

    >>> read_percentile(neighbours_text([Neighbour("STR", "3fa8")], 43.2))
    43.0
    """
    found = _PERCENTILE.search(text)
    return float(found[1]) if found else None


def neighbour_votes(text: str, names: Sequence[str]) -> NDArray[np.float64]:
    """How many of the neighbours in an answer have each class."""
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
            value = text[place + len(name) + 3 :].partition(", ")[0]
            found.append((place, label, float(value)))
    return found
