"""Encoders over many splits of one dataset: means, their spread, ranks, and differences that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.ranking import ranks
from histobench.core.statistics.split_tests import MeanOverSplits, corrected_resampled_t
from histobench.roi.comparison.metric_function import check_metric
from histobench.roi.comparison.metric_intervals import range_of
from histobench.roi.comparison.selection import by_dataset
from histobench.roi.metrics.catalogue import LOWER_IS_BETTER
from histobench.roi.results.stored_run import StoredRun

Floats = NDArray[np.float64]
Key = tuple[int, int]  # repeat and fold
TEST = "corrected-t"  # Nadeau and Bengio's corrected resampled t
#: What the corrected t test needs to hold its level, as far as known; a table says what it lacks.
FEWEST_SPLITS = 10
LARGEST_TEST_TO_TRAIN = 0.5
FEWEST_GROUPS = 12


@dataclass(frozen=True)
class SplitEntry:
    """One encoder over the splits; ranks are those within each split, 1 for the best."""

    name: str
    mean: MeanOverSplits
    spread: float  # standard deviation over splits
    least: float
    greatest: float
    mean_rank: float
    rank_low: int  # where the middle 95 % of its ranks lie
    rank_high: int
    first: float  # share of splits in which it is the best, or one of equals


@dataclass(frozen=True)
class SplitPair:
    """Two encoders on the same splits: first - second."""

    first: str
    second: str
    difference: MeanOverSplits
    p_value: float  # of the chosen test
    p_adjusted: float  # Holm over all pairs
    holds: bool
    wins: float  # share of splits in which the first is better


@dataclass(frozen=True)
class SplitTable:
    """All encoders of one dataset, best first."""

    dataset: str
    task: str
    setting: str
    metric: str
    scheme: str
    n_splits: int
    test_to_train: float
    test: str
    alpha: float
    entries: tuple[SplitEntry, ...]
    pairs: tuple[SplitPair, ...]
    notes: tuple[str, ...] = ()


def compare_splits(
    runs: Sequence[StoredRun],
    *,
    metric: str = "balanced_accuracy",
    alpha: float = 0.05,
) -> list[SplitTable]:
    """A table for every dataset and scheme among the runs of one task and setting (see `split_runs`)."""
    check_metric(metric)
    if not 0 < alpha < 1:
        raise HistobenchError(f"`alpha` must lie between 0 and 1, not {alpha:g}")
    tables = []
    for dataset, members in by_dataset(runs).items():
        schemes = dict.fromkeys(str(run.info["split"]["scheme"]) for run in members)
        for scheme in schemes:
            chosen = [run for run in members if run.info["split"]["scheme"] == scheme]
            tables.append(_table(dataset, scheme, chosen, metric, alpha))
    return tables


def _table(dataset: str, scheme: str, runs: Sequence[StoredRun], metric: str, alpha: float) -> SplitTable:
    named = _by_encoder(runs)
    keys = _shared(dataset, named)
    values = np.array(
        [[_number(named[name][key].metrics.get(metric)) for key in keys] for name in named], dtype=np.float64
    )  # [m, J]
    defined: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=0))
    notes = _notes(named, keys, defined, scheme)
    keys, values = [key for key, kept in zip(keys, defined, strict=True) if kept], values[:, defined]
    if values.shape[1] < 2:
        raise HistobenchError(f"{dataset}: {metric} is defined on fewer than two shared splits of {scheme}")
    sizes = [next(iter(named.values()))[key].info["split"] for key in keys]
    ratio = float(np.mean([size["num_test"] / size["num_train"] for size in sizes]))
    lower = metric in LOWER_IS_BETTER
    names = list(named)
    place = ranks(values.T, higher_is_better=not lower).T  # [m, J]
    means = values.mean(axis=1)
    order = sorted(range(len(names)), key=lambda k: (means[k] if lower else -means[k], names[k]))
    ends = range_of(metric, max(len(run.classes) for run in runs))
    entries = tuple(_entry(names[k], values[k], place[k], place, ratio, alpha, ends) for k in order)
    pairs = _pairs([(names[k], values[k]) for k in order], ratio, alpha, lower, ends[1] - ends[0])
    notes += _doubts(len(keys), ratio, runs, pairs)
    return SplitTable(
        dataset, runs[0].task, runs[0].setting, metric, scheme, len(keys), ratio, TEST, alpha, entries, pairs,
        tuple(notes),
    )  # fmt: skip


def _by_encoder(runs: Sequence[StoredRun]) -> dict[str, dict[Key, StoredRun]]:
    presets = len({run.identity.preset for run in runs}) > 1
    seeds = len({run.identity.seed for run in runs}) > 1
    named: dict[str, dict[Key, StoredRun]] = {}
    for run in runs:
        what = [run.identity.preset] * presets + [f"seed {run.identity.seed}"] * seeds
        name = run.identity.encoder + (f" [{', '.join(what)}]" if what else "")
        split = run.info["split"]
        named.setdefault(name, {})[int(split["repeat"]), int(split["fold"])] = run
    return named


def _shared(dataset: str, named: Mapping[str, Mapping[Key, StoredRun]]) -> list[Key]:
    """The splits that every encoder was run on; refused where one of them has other test images."""
    first, *others = named
    keys = sorted(set.intersection(*(set(splits) for splits in named.values())))
    for name in others:
        for key in keys:
            mine, theirs = (named[who][key].info["split"].get("images") for who in (first, name))
            if mine != theirs:
                raise HistobenchError(
                    f"cannot compare {first} with {name} over splits of {dataset}: repeat {key[0]}, fold "
                    f"{key[1]} has other test images; evaluate both with the same data, groups and seed"
                )
    return keys


def _notes(
    named: Mapping[str, Mapping[Key, StoredRun]], keys: Sequence[Key], defined: NDArray[np.bool_], scheme: str
) -> list[str]:
    notes = []
    planned = max(int(run.info["split"]["of"]) for splits in named.values() for run in splits.values())
    if len(keys) < planned:
        notes.append(f"{len(keys)} of {planned} splits of {scheme} were run for every encoder")
    if not defined.all():
        missing = int((~defined).sum())
        notes.append(f"the metric is undefined on {missing} splits (a class is missing there), left out")
    return notes


def _doubts(n_splits: int, ratio: float, runs: Sequence[StoredRun], pairs: Sequence[SplitPair]) -> list[str]:
    """Which assumptions of the corrected t test do not hold here."""
    notes = []
    if n_splits < FEWEST_SPLITS:
        notes.append(
            f"caution: {n_splits} splits show their own spread only roughly; use at least {FEWEST_SPLITS}"
        )
    if ratio > LARGEST_TEST_TO_TRAIN:
        notes.append(
            f"caution: test sets are {ratio:.1f} times the size of training sets: the correction for "
            "overlapping training sets assumes larger training sets; use more folds"
        )
    groups = {group for run in runs for group in run.predictions.groups or () if group}
    if groups and len(groups) < FEWEST_GROUPS:
        notes.append(
            f"caution: all splits divide the same {len(groups)} groups: p-values may be too small; "
            f"{FEWEST_GROUPS} groups or more are needed, or leave-one-group-out"
        )
    if any(math.isnan(pair.p_value) or math.isnan(pair.difference.low) for pair in pairs):
        notes.append("no interval where a difference is the same on every split: nothing shows its spread")
    return notes


def _within(mean: MeanOverSplits, low: float, high: float) -> MeanOverSplits:
    """The same with bounds inside the range of the metric."""
    return replace(mean, low=max(mean.low, low), high=min(mean.high, high)) if mean.low == mean.low else mean


def _entry(
    name: str,
    values: Floats,
    place: Floats,
    everyone: Floats,
    ratio: float,
    alpha: float,
    ends: tuple[float, float],
) -> SplitEntry:
    low, high = np.quantile(place, [alpha / 2, 1 - alpha / 2])
    return SplitEntry(
        name=name,
        mean=_within(corrected_resampled_t(values, test_to_train=ratio, level=1 - alpha), *ends),
        spread=float(values.std(ddof=1)),
        least=float(values.min()),
        greatest=float(values.max()),
        mean_rank=float(place.mean()),
        rank_low=math.floor(low),
        rank_high=math.ceil(high),
        first=float((place == everyone.min(axis=0)).mean()),
    )


def _pairs(
    ordered: list[tuple[str, Floats]], ratio: float, alpha: float, lower: bool, span: float
) -> tuple[SplitPair, ...]:
    found = []
    for (first, a), (second, b) in combinations(ordered, 2):
        difference = a - b
        mean = corrected_resampled_t(difference, test_to_train=ratio, level=1 - alpha)
        better = difference < 0 if lower else difference > 0
        found.append((first, second, _within(mean, -span, span), mean.p_value, float(better.mean())))
    adjusted = holm([p_value for *_, p_value, _ in found])
    return tuple(
        SplitPair(first, second, mean, p_value, float(corrected), bool(corrected <= alpha), wins)
        for (first, second, mean, p_value, wins), corrected in zip(found, adjusted, strict=True)
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
