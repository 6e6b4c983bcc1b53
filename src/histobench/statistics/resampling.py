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
        """How many samples (test images) there are."""
        return len(self.unit_of)

    @property
    def n_units(self) -> int:
        """How many independent units (images, or patients and slides) there are."""
        return len(self.stratum_of)

    @property
    def degrees_of_freedom(self) -> float:
        """How much the spread between units is worth: units less one, or Welch's formula over the strata.

        The formula weighs strata equally, as class-averaged metrics do, and so errs on the safe side.
        """
        sizes = np.bincount(self.stratum_of)
        sizes = sizes[sizes > 1]
        if len(sizes) == 0:
            return 0.0
        return float((1 / sizes).sum() ** 2 / (1 / (sizes**2.0 * (sizes - 1))).sum())

    @property
    def is_clustered(self) -> bool:
        """Whether whole clusters are drawn."""
        return "cluster" in self.kind


def sampling_design(
    n_samples: int, *, strata: ArrayLike | None = None, clusters: Sequence[object] | ArrayLike | None = None
) -> SamplingDesign:
    """The design for `n_samples` samples, drawn within `strata` and in whole `clusters` where given.

    A cluster with samples of several strata counts to its most frequent one (the lowest of equals).

    >>> sampling_design(3, clusters=["p1", "p1", "p2"]).n_units
    2
    """
    codes = None if strata is None else _codes(strata, n_samples, "strata")
    if clusters is None:
        stratum = np.zeros(n_samples, dtype=np.int64) if codes is None else codes
        return SamplingDesign(np.arange(n_samples), stratum, "plain" if codes is None else "stratified")
    unit_of = _codes(clusters, n_samples, "clusters")
    n_units = int(unit_of.max(initial=-1)) + 1
    if codes is None:
        return SamplingDesign(unit_of, np.zeros(n_units, dtype=np.int64), "cluster")
    votes = np.zeros((n_units, int(codes.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(votes, (unit_of, codes), 1)
    stratum = np.unique(votes.argmax(axis=1), return_inverse=True)[1].astype(np.int64)
    return SamplingDesign(unit_of, stratum, "stratified cluster")


def design_for_labels(labels: ArrayLike, groups: Sequence[object] | None = None) -> SamplingDesign:
    """The design a table should use: whole groups when there are any, otherwise images within classes.

    Groups are drawn within classes only when each holds one class and every class has at least two
    groups; else stratification would be arbitrary or would hide the differences between patients.
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
    """Counts [n_resamples, n] of as many units as there are, within strata.

    >>> design = sampling_design(4, strata=[0, 0, 1, 1])
    >>> draw_counts(design, 5, np.random.default_rng(0))[:, :2].sum(axis=1)
    array([2, 2, 2, 2, 2])
    """
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


def iterate_counts(
    design: SamplingDesign,
    n_resamples: int,
    *,
    seed: int,
    memory_budget: int = MEMORY_BUDGET,
) -> Iterator[Counts]:
    """The rows of `draw_counts` in chunks that fit the memory budget."""
    generator = np.random.default_rng(seed)
    per_row = _BYTES_PER_DRAW * design.n_samples
    rows = int(max(1, min(n_resamples, memory_budget // max(per_row, 1))))
    for start in range(0, n_resamples, rows):
        yield draw_counts(design, min(rows, n_resamples - start), generator)


def replicates_of_all(
    evaluate: Evaluate, design: SamplingDesign, *, n_resamples: int, seed: int
) -> dict[str, Floats]:
    """Every metric of `evaluate` on the same resamples, name -> [n_resamples]."""
    return _gather(evaluate(counts) for counts in iterate_counts(design, n_resamples, seed=seed))


def jackknife_counts(design: SamplingDesign, *, max_blocks: int = 1000) -> Iterator[Counts]:
    """Counts that leave out one unit at a time, or one block of units of a stratum when there are many.

    The acceleration of BCa is the same in expectation for blocks as for single units.
    """
    blocks, _ = jackknife_blocks(design, max_blocks)
    block_of_sample = blocks[design.unit_of]
    n_blocks = int(blocks.max(initial=-1)) + 1
    rows = int(max(1, MEMORY_BUDGET // max(_BYTES_PER_DRAW * design.n_samples, 1)))
    for start in range(0, n_blocks, rows):
        left_out = np.arange(start, min(start + rows, n_blocks))
        yield (block_of_sample[None, :] != left_out[:, None]).astype(np.int32)


def jackknife_strata(design: SamplingDesign, *, max_blocks: int = 1000) -> NDArray[np.int64]:
    """The stratum of each row of `jackknife_counts`."""
    return jackknife_blocks(design, max_blocks)[1]


def jackknife_of_all(
    evaluate: Evaluate, design: SamplingDesign, *, max_blocks: int = 1000
) -> dict[str, Floats]:
    """Every metric with each unit (or block of units) left out."""
    return _gather(evaluate(counts) for counts in jackknife_counts(design, max_blocks=max_blocks))


def _gather(chunks: Iterator[Mapping[str, Floats]]) -> dict[str, Floats]:
    parts: dict[str, list[Floats]] = {}
    for chunk in chunks:
        for name, values in chunk.items():
            parts.setdefault(name, []).append(np.asarray(values, dtype=np.float64))
    return {name: np.concatenate(values) for name, values in parts.items()}


def jackknife_blocks(design: SamplingDesign, max_blocks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The block of each unit and the stratum of each block; blocks of a stratum are equal up to one unit."""
    sizes = np.bincount(design.stratum_of)
    if design.n_units <= max_blocks:
        return np.arange(design.n_units), design.stratum_of
    per_stratum = np.maximum(np.minimum(sizes, 2), (sizes * (max_blocks / design.n_units)).astype(np.int64))
    first = np.concatenate([[0], np.cumsum(per_stratum)[:-1]])
    blocks = np.empty(design.n_units, dtype=np.int64)
    for stratum, (start, count) in enumerate(zip(first, per_stratum, strict=True)):
        members = np.flatnonzero(design.stratum_of == stratum)
        blocks[members] = start + np.arange(len(members)) * count // len(members)
    return blocks, np.repeat(np.arange(len(sizes)), per_stratum)


def _codes(values: Sequence[object] | ArrayLike, n_samples: int, what: str) -> NDArray[np.int64]:
    codes = np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int64)
    if codes.shape != (n_samples,):
        raise ValueError(f"{what} must have one entry per sample: {codes.shape} instead of ({n_samples},)")
    return codes


@dataclass(frozen=True)
class PairedDifference:
    """first - second with its interval and the two-sided p-value of "no difference"."""

    difference: float
    interval: Interval
    p_value: float
