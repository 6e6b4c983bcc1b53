"""Resamples as count matrices: bootstrap draws, and one unit left out at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.intervals import Interval

Counts = NDArray[np.int32]  # [b, n]
Floats = NDArray[np.float64]
Metric = Callable[[Counts], Floats]  # [b, n] -> [b]
Evaluate = Callable[[Counts], Mapping[str, Floats]]  # all metrics at once

#: A chunk of counts and what it takes to draw them stay below this; results do not depend on it.
MEMORY_BUDGET = 64 * 2**20
_BYTES_PER_DRAW = 32


@dataclass(frozen=True)
class SamplingDesign:
    """What is drawn with replacement: units (single samples, or whole clusters) within strata."""

    unit_of: NDArray[np.int64]  # [n], the unit each sample belongs to
    stratum_of: NDArray[np.int64]  # [u], the stratum each unit belongs to
    kind: str  # "plain", "stratified", "cluster" or "stratified cluster"

    @property
    def n_samples(self) -> int:
        return len(self.unit_of)

    @property
    def n_units(self) -> int:
        return len(self.stratum_of)

    @property
    def degrees_of_freedom(self) -> float:
        """How much the spread between units is worth: units less one, or Welch's formula over the strata."""
        sizes = np.bincount(self.stratum_of)
        sizes = sizes[sizes > 1]
        if len(sizes) == 0:
            return 0.0
        return float((1 / sizes).sum() ** 2 / (1 / (sizes**2.0 * (sizes - 1))).sum())

    @property
    def is_clustered(self) -> bool:
        return "cluster" in self.kind


def sampling_design(
    n_samples: int, *, strata: ArrayLike | None = None, clusters: Sequence[object] | ArrayLike | None = None
) -> SamplingDesign:
    """The design for `n_samples` samples, drawn within `strata` and in whole `clusters` where given.

    A cluster with samples of several strata counts to its most frequent one (the lowest of equals).
    """
    codes = None if strata is None else _codes(strata)
    if clusters is None:
        stratum = np.zeros(n_samples, dtype=np.int64) if codes is None else codes
        return SamplingDesign(np.arange(n_samples), stratum, "plain" if codes is None else "stratified")
    unit_of = _codes(clusters)
    n_units = int(unit_of.max(initial=-1)) + 1
    if codes is None:
        return SamplingDesign(unit_of, np.zeros(n_units, dtype=np.int64), "cluster")
    votes = np.zeros((n_units, int(codes.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(votes, (unit_of, codes), 1)
    stratum = np.unique(votes.argmax(axis=1), return_inverse=True)[1].astype(np.int64)
    return SamplingDesign(unit_of, stratum, "stratified cluster")


def _codes(values: Sequence[object] | ArrayLike) -> NDArray[np.int64]:
    return np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int64)


def design_for_labels(labels: ArrayLike, groups: Sequence[object] | None = None) -> SamplingDesign:
    """Whole groups when there are any, otherwise images within classes.

    Groups are drawn within classes only when each holds one class and every class has at least two groups.
    """
    classes = np.asarray(labels)
    if groups is None:
        return sampling_design(len(classes), strata=classes)
    stratified = sampling_design(len(classes), strata=classes, clusters=groups)
    class_of = np.unique(classes, return_inverse=True)[1]
    pure = len(np.unique(np.stack([stratified.unit_of, class_of]), axis=1).T) == stratified.n_units
    if pure and np.bincount(stratified.stratum_of).min() >= 2:
        return stratified
    return sampling_design(len(classes), clusters=groups)


def draw_counts(design: SamplingDesign, n_resamples: int, generator: np.random.Generator) -> Counts:
    """Counts [n_resamples, n] of as many units as there are, within strata."""
    sizes = np.bincount(design.stratum_of)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    # One uniform number per draw, row by row: the stream is the same however the rows are chunked.
    picks = generator.random((n_resamples, design.n_units))
    picks *= np.repeat(sizes, sizes)
    places = picks.astype(np.int64)
    places += np.repeat(starts, sizes)
    places += (np.arange(n_resamples) * design.n_units)[:, None]
    flat = np.bincount(places.ravel(), minlength=n_resamples * design.n_units)
    drawn: Counts = flat.reshape(n_resamples, design.n_units).astype(np.int32)
    place_of_unit = np.empty(design.n_units, dtype=np.int64)
    place_of_unit[np.argsort(design.stratum_of, kind="stable")] = np.arange(design.n_units)
    return drawn[:, place_of_unit[design.unit_of]]


def replicates_of_all(
    evaluate: Evaluate, design: SamplingDesign, *, n_resamples: int, seed: int, memory: int = MEMORY_BUDGET
) -> dict[str, Floats]:
    """Every metric of `evaluate` on the same resamples, name -> [n_resamples]."""
    generator = np.random.default_rng(seed)
    rows = max(1, memory // max(_BYTES_PER_DRAW * design.n_samples, 1))
    starts = range(0, n_resamples, rows)
    counts = (draw_counts(design, min(rows, n_resamples - start), generator) for start in starts)
    return _gather(map(evaluate, counts))


def jackknife_of_all(
    evaluate: Evaluate, design: SamplingDesign, *, max_blocks: int = 1000
) -> dict[str, Floats]:
    """Every metric with each unit left out, or each block of units where there are more than `max_blocks`."""
    block_of_sample = jackknife_blocks(design, max_blocks)[design.unit_of]
    n_blocks = int(block_of_sample.max(initial=-1)) + 1
    rows = max(1, MEMORY_BUDGET // max(_BYTES_PER_DRAW * design.n_samples, 1))

    def without(start: int) -> Counts:
        left_out = np.arange(start, min(start + rows, n_blocks))
        return (block_of_sample[None, :] != left_out[:, None]).astype(np.int32)

    return _gather(evaluate(without(start)) for start in range(0, n_blocks, rows))


def _gather(chunks: Iterator[Mapping[str, Floats]]) -> dict[str, Floats]:
    parts: dict[str, list[Floats]] = {}
    for chunk in chunks:
        for name, values in chunk.items():
            parts.setdefault(name, []).append(np.asarray(values, dtype=np.float64))
    return {name: np.concatenate(values) for name, values in parts.items()}


def jackknife_blocks(design: SamplingDesign, max_blocks: int) -> NDArray[np.int64]:
    """The block of each unit; blocks are equal up to one unit."""
    n = design.n_units
    if n <= max_blocks:
        return np.arange(n)
    return np.arange(n) * max(min(n, 2), int(n * (max_blocks / n))) // n


@dataclass(frozen=True)
class PairedDifference:
    """first - second with its interval and the two-sided p-value of "no difference"."""

    difference: float
    interval: Interval
    p_value: float
