"""The words in which the encoder tools answer, the same in every arm, and how a program reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbour:
    """A training region near the case: its class, the cosine of the angle, the hash of its content."""

    label: str
    cosine: float
    image: str


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


def neighbours_text(neighbours: Sequence[Neighbour]) -> str:
    """A line for each neighbour: rank, label, cosine, id.

    >>> neighbours_text([Neighbour("STR", 0.91234, "3fa8")])
    '1. STR, cosine 0.912, image 3fa8'
    """
    if not neighbours:
        return "no training region can be shown"
    return "\n".join(
        f"{rank}. {neighbour.label}, cosine {neighbour.cosine:.3f}, image {neighbour.image}"
        for rank, neighbour in enumerate(neighbours, start=1)
    )


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
    """The neighbours that an answer names, nearest first.

    >>> read_neighbours("1. loose, cosine of it, cosine 0.912, image 3fa8")
    [Neighbour(label='loose, cosine of it', cosine=0.912, image='3fa8')]
    """
    found = []
    for line in text.splitlines():
        label, mark, rest = line.partition(". ")[2].rpartition(", cosine ")
        cosine, _, image = rest.partition(", image ")
        if mark:
            found.append(Neighbour(label, float(cosine), image))
    return found


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
