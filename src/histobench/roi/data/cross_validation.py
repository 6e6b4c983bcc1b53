"""Repeated cross-validation: whole groups, balanced classes, the same folds whatever the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.split import imbalance, units
from histobench.roi.options import Scheme

Ints = NDArray[np.int64]
#: Of so many random assignments of groups the most balanced is taken: random, and still fair to classes.
_TRIES = 10


@dataclass(frozen=True)
class Split:
    """One fold of one repeat as the test set; both are counted from 1."""

    repeat: int
    fold: int
    train: Ints
    test: Ints
    val: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def name(self) -> str:
        """The split's folder."""
        return f"repeat-{self.repeat:02d}_fold-{self.fold:02d}"


def splits_of(
    labels: Ints, groups: Sequence[str] | None, names: Sequence[str], scheme: Scheme, *, seed: int = 0
) -> list[Split]:
    """Every split of the scheme; each image is tested once in every repeat.

    A group "" is an image of its own. The outcome does not depend on the order of the images.
    """
    order = np.array(sorted(range(len(labels)), key=lambda row: (names[row], int(labels[row]), row)))
    keys = [
        f"g{groups[row]}" if groups is not None and groups[row] else f"i{place:09d}"
        for place, row in enumerate(order)
    ]
    unit_of, counts = units(np.asarray(labels)[order], keys)
    folds = scheme.folds or len(counts)
    if len(counts) < max(folds, 2):
        raise HistobenchError(f"{len(counts)} groups (patients, slides) do not make {max(folds, 2)} folds")
    found = []
    for repeat in range(1, scheme.repeats + 1):
        rng = np.random.default_rng([seed, repeat, folds])
        fold = np.arange(len(counts)) if not scheme.folds else _folds(counts, folds, rng)
        of_row = np.empty(len(labels), dtype=np.int64)
        of_row[order] = fold[unit_of]
        found += [
            Split(repeat, k + 1, np.flatnonzero(of_row != k), np.flatnonzero(of_row == k))
            for k in range(folds)
        ]
    return found


def given_splits(folds: Sequence[str]) -> list[Split]:
    """The splits that a task folder gives: of every image [n] a letter per fold (t train, v val, e test)."""
    letters = np.array([list(text) for text in folds])
    places = [{part: np.flatnonzero(column == part) for part in "tve"} for column in letters.T]
    return [Split(k + 1, 1, place["t"], place["e"], place["v"]) for k, place in enumerate(places)]


def _folds(counts: NDArray[np.float64], folds: int, rng: np.random.Generator) -> Ints:
    """A random fold of each unit (row of class counts), balanced over classes."""
    if (counts.sum(axis=1) == 1).all():
        return _dealt(counts.argmax(axis=1), folds, rng)
    shares = np.full(folds, 1 / folds)
    best, least = np.zeros(len(counts), dtype=np.int64), np.inf
    for _ in range(_TRIES):
        fold = _greedy(counts, folds, rng)
        table = np.zeros((folds, counts.shape[1]))
        np.add.at(table, fold, counts)
        # An empty fold would be no test set at all.
        cost = float(imbalance(table, shares)) + 100.0 * int((table.sum(axis=1) == 0).sum())
        if cost < least - 1e-12:
            best, least = fold, cost
    return best


def _dealt(class_of: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """Single images: those of each class are dealt out in turn, going on where the last class ended."""
    fold = np.empty(len(class_of), dtype=np.int64)
    start = int(rng.integers(folds))
    for label in np.unique(class_of):
        rows = rng.permutation(np.flatnonzero(class_of == label))
        fold[rows] = (start + np.arange(len(rows))) % folds
        start += len(rows)
    return fold


def _greedy(counts: NDArray[np.float64], folds: int, rng: np.random.Generator) -> Ints:
    """Units in random order, each to the fold that it brings nearest to its share of every class."""
    normal = counts / counts.sum(axis=0)
    lacking = np.full((folds, counts.shape[1]), 1 / folds)
    fold = np.empty(len(counts), dtype=np.int64)
    for unit in rng.permutation(len(counts)):
        gain = (lacking**2).sum(axis=1) - ((lacking - normal[unit]) ** 2).sum(axis=1)
        chosen = int(rng.choice(np.flatnonzero(gain >= gain.max() - 1e-12)))
        lacking[chosen] -= normal[unit]
        fold[unit] = chosen
    return fold
