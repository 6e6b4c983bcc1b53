"""Encoders against each other: a ranked table for each dataset, every pair tested; then all datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.episode_intervals import episode_tables
from histobench.roi.comparison.left_out_table import TargetTable, left_out_table
from histobench.roi.comparison.sampling_units import SamplingUnits, aligned
from histobench.roi.comparison.selection import by_dataset, distinct_names
from histobench.roi.comparison.table_statistics import (
    MetricStatistics,
    Pairs,
    Standings,
    metric_statistics,
    target_statistics,
)
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER, metric_of
from histobench.roi.metrics.target_metrics import REFERENCES
from histobench.roi.presets import target_metrics
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS, a_target
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import Floats, LeaveOneOut
from histobench.statistics.many_models import (
    Friedman,
    WinTieLoss,
    cliques,
    complete_block,
    friedman,
    nemenyi_critical_difference,
    nemenyi_p_values,
    ranks,
    win_tie_loss,
)
from histobench.statistics.tests import SignedRank, holm, signed_ranks


@dataclass(frozen=True)
class RankedEntry:
    """One encoder's line in a ranked table."""

    name: str
    rank: int | None
    value: float | None
    interval: Interval
    reported: float | None  # what the run's own file says; differs for few-shot (mean over episodes)
    caveats: tuple[str, ...] = ()  # what the run's own file says to keep in mind


@dataclass(frozen=True)
class Pair:
    first: str
    second: str
    difference: float
    interval: Interval
    p_value: float
    p_adjusted: float  # Holm over all pairs of the table
    holds: bool  # the simultaneous interval excludes 0
    simultaneous: Interval  # holds together with those of all other pairs (max-t)
    p_simultaneous: float

    def reversed(self) -> Pair:
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            interval=self.interval.negated(),
            simultaneous=self.simultaneous.negated(),
        )


@dataclass(frozen=True)
class DatasetTable:
    """The comparison on one dataset: entries best first, all pairs better encoder first."""

    dataset: str
    entries: tuple[RankedEntry, ...]
    pairs: tuple[Pair, ...]
    n_images: int
    n_groups: int | None
    resampled: str  # what was left out one at a time, in words
    notes: tuple[str, ...] = ()
    standings: Standings | None = None  # None with fewer than two values, or where nothing is tested
    #: The same encoders by accuracy, where the metric could not be tested and accuracy could.
    instead: DatasetTable | None = None

    def pair(self, first: str, second: str) -> Pair | None:
        return self._by_names.get((first, second))

    @cached_property
    def _by_names(self) -> dict[tuple[str, str], Pair]:
        """Both ways round: tables of many encoders ask for each of their pairs again and again."""
        found = {(pair.first, pair.second): pair for pair in self.pairs}
        return {(pair.second, pair.first): pair.reversed() for pair in self.pairs} | found


@dataclass(frozen=True)
class DatasetRanking:
    """Encoders over datasets, best mean rank first.

    Mean ranks need a table without gaps: what would leave gaps is left out. The chances of pairs have all
    encoders, each pair on the datasets that both were run on.
    """

    names: tuple[str, ...]
    datasets: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    mean_values: tuple[float, ...]
    friedman: Friedman
    critical_difference: float
    nemenyi_p: tuple[tuple[float, ...], ...]
    groups: tuple[tuple[str, ...], ...]  # within each, no two mean ranks differ
    win_tie_loss: WinTieLoss  # rows against columns, in the order of `names`
    left_out: tuple[str, ...]  # encoders without a mean rank
    notes: tuple[str, ...] = ()
    left_out_datasets: tuple[str, ...] = ()
    run_on: tuple[tuple[str, int], ...] = ()  # every encoder, and on how many of all datasets it has a value
    rope: float = 0.01
    chances: tuple[tuple[SignedRank | None, ...], ...] = ()  # rows against columns, in the order of `run_on`


@dataclass(frozen=True)
class RankedBlock:
    """The part of a table [datasets, models] that has no gaps, models by their mean rank, best first."""

    rows: tuple[int, ...]  # places of the datasets in the whole table
    columns: tuple[int, ...]  # places of the models, best mean rank first
    scores: Floats  # [rows, columns]
    mean_ranks: Floats  # [columns]
    friedman: Friedman
    critical_difference: float
    groups: tuple[tuple[int, ...], ...]  # places among `columns`; within each no two mean ranks differ


@dataclass(frozen=True)
class Comparison:
    """Everything `histobench compare` says."""

    metric: str
    task: str
    setting: str
    presets: tuple[str, ...]
    alpha: float
    lower_is_better: bool
    tables: tuple[DatasetTable, ...]
    ranking: DatasetRanking | None
    seeds: tuple[int, ...] = ()


def settings_for(runs: Sequence[StoredRun], settings: CompareSettings) -> CompareSettings:
    """The settings with a metric of the runs' target; where none was chosen, its main one."""
    kind = runs[0].target
    if kind == CLASS:
        if metric_of(settings.metric).kind == "target":
            raise HistobenchError(f"`metric` {settings.metric} is not for classes; leave it out")
        return settings
    known = target_metrics(kind, runs[0].identity.preset)
    if settings.metric in known:
        return settings
    if settings.metric != CompareSettings.metric:
        which = f"`metric` {settings.metric} is not for {a_target(kind)}"
        raise HistobenchError(f"{which}; known: {', '.join(known)}")
    return replace(settings, metric=known[0])


def dataset_table(dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable:
    """The table of one dataset: every run with its interval, every pair tested.

    Where a metric over classes cannot be tested, because a class has too few groups, accuracy is tested.
    """
    table = _dataset_table(dataset, runs, settings)
    by_classes = runs[0].target == CLASS and metric_of(settings.metric).kind != "calibration"
    if table.standings is not None or len(runs) < 2 or settings.metric == "accuracy" or not by_classes:
        return table
    accuracy = _dataset_table(dataset, runs, replace(settings, metric="accuracy"))
    return table if accuracy.standings is None else replace(table, instead=accuracy)


def _dataset_table(dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable:
    named, settings = distinct_names(runs), settings_for(runs, settings)
    metric, alpha = settings.metric, settings.alpha
    if runs[0].target != CLASS:
        every = {name: run.target_predictions for name, run in named.items()}
        target = TargetTable.of(every, dataset=dataset)
        statistics = target_statistics(metric, target, alpha=alpha)
        table = _table(dataset, named, target.found[metric], statistics, target.units, metric)
        return replace(table, notes=(*table.notes, *_references(target)), resampled=target.resampled)
    predictions = aligned({name: run.predictions for name, run in named.items()}, dataset=dataset)
    units = SamplingUnits.of(next(iter(predictions.values())))
    if len(units.labels) == 0:
        raise HistobenchError(f"the runs on {dataset or 'this dataset'} hold no predictions to compare")
    means = (episode_tables(named, predictions, units, [metric]) or {}).get(metric)
    if means is None:
        found = left_out_table(predictions, [metric], units)[metric]
        statistics = metric_statistics(metric, found, units, alpha=alpha)
        return _table(dataset, named, found, statistics, units, metric)
    # What runs report as means over episodes: intervals and tests are of these means.
    statistics = metric_statistics(metric, means.found, units, alpha=alpha, note=means.note)
    table = _table(dataset, named, means.found, statistics, units, metric)
    return replace(table, resampled=means.resampled)


def _references(table: TargetTable) -> Iterator[str]:
    """The Dice of what a segmentation is compared with."""
    found = [table.found[f"{name}_dice"] for name in REFERENCES if f"{name}_dice" in table.found]
    for place, name in enumerate(found[0].names if found else ()):
        values = ", ".join(
            f"{words} {each.values[place]:.3f}"
            for words, each in zip(("random weights", "mean colors", "grid"), found, strict=True)
        )
        yield f"{name}: Dice of references: {values}"


def _table(
    dataset: str,
    named: dict[str, StoredRun],
    found: LeaveOneOut,
    statistics: MetricStatistics,
    units: SamplingUnits,
    metric: str,
) -> DatasetTable:
    observed = dict(zip(found.names, found.values.tolist(), strict=True))
    sign = 1 if metric in LOWER_IS_BETTER else -1
    entries = []
    for name in statistics.order:
        value, interval, run = observed[name], statistics.intervals[name], named[name]
        ahead = sum(sign * other < sign * value for other in observed.values())
        rank, known = (None, None) if math.isnan(value) else (1 + ahead, value)
        entries.append(RankedEntry(name, rank, known, interval, run.metrics.get(metric), run.caveats))
    pairs = _pairs(statistics.pairs)
    return DatasetTable(
        dataset=dataset,
        entries=tuple(entries),
        pairs=pairs,
        n_images=len(units.labels),
        n_groups=units.n_groups,
        resampled=units.resampled,
        notes=_notes(entries, pairs, statistics),
        standings=statistics.standings,
    )


def _pairs(found: Pairs) -> tuple[Pair, ...]:
    """All pairs of encoders that have a value, corrected for all of them: the best was chosen by the data."""
    adjusted, level = holm(found.p_value), 1 - found.alpha
    return tuple(
        Pair(
            first=first,
            second=second,
            difference=float(found.difference[k]),
            interval=_interval(found.own_low[k], found.own_high[k], level),
            p_value=float(found.p_value[k]),
            p_adjusted=float(adjusted[k]),
            holds=bool(found.holds[k]),
            simultaneous=_interval(found.low[k], found.high[k], level, "max-t"),
            p_simultaneous=float(found.p_adjusted[k]),
        )
        for k, (first, second) in enumerate(combinations(found.names, 2))
    )


def _interval(low: float, high: float, level: float, method: str = "jackknife-t") -> Interval:
    why = "the test set does not show how much it varies"
    return Interval.of(low, high, level=level, method=method, why_none=why)


def _notes(
    entries: Sequence[RankedEntry], pairs: Sequence[Pair], statistics: MetricStatistics
) -> tuple[str, ...]:
    notes = []
    missing = [entry.name for entry in entries if entry.value is None]
    if missing:
        notes.append(f"the metric has no value for {', '.join(missing)}")
    reported = [(entry.value, entry.reported) for entry in entries]
    if any(a is not None and b is not None and abs(a - b) > 1e-6 for a, b in reported):
        notes.append(
            "values are those of the stored per-image predictions (for few-shot: mean probabilities over "
            "episodes); the runs' files report means over episodes"
        )
    reasons = {each.interval.reason for each in entries if each.value is not None and each.interval.reason}
    notes += sorted(reason if reason.startswith("no ") else f"no interval: {reason}" for reason in reasons)
    if statistics.note:
        notes.append(statistics.note)
    if pairs:
        notes.append("corrected for the pairs of this table, not for a choice of metrics, tasks or datasets")
    return tuple(notes)


TableMaker = Callable[[str, Sequence[StoredRun], CompareSettings], DatasetTable]


def compare_runs(
    runs: Sequence[StoredRun], settings: CompareSettings, *, table_of: TableMaker = dataset_table
) -> Comparison:
    """Compare runs of one task and setting (see `select_runs`), dataset by dataset and over datasets.

    `table_of` makes the table of a dataset, or knows where it is.
    """
    settings = settings_for(runs, settings)
    tables = tuple(table_of(dataset, members, settings) for dataset, members in by_dataset(runs).items())
    lower = settings.metric in LOWER_IS_BETTER
    return Comparison(
        metric=settings.metric,
        task=runs[0].task,
        setting=runs[0].setting,
        presets=tuple(sorted({run.identity.preset for run in runs})),
        alpha=settings.alpha,
        lower_is_better=lower,
        tables=tables,
        ranking=_rank_over_datasets(tables, alpha=settings.alpha, lower_is_better=lower, rope=settings.rope),
        seeds=tuple(sorted({run.identity.seed for run in runs})),
    )


def ranked_block(values: Floats, *, alpha: float, lower_is_better: bool) -> RankedBlock | None:
    """Mean ranks of models over datasets, `values` [datasets, models] with NaN for gaps.

    None when fewer than two datasets share two models.
    """
    rows, columns = complete_block(np.isfinite(values))
    if len(rows) < 2 or len(columns) < 2:
        return None
    scores = values[np.ix_(rows, columns)]
    mean_ranks = ranks(scores, higher_is_better=not lower_is_better).mean(axis=0)
    order = np.argsort(mean_ranks, kind="stable")
    critical = nemenyi_critical_difference(len(columns), len(rows), alpha=alpha)
    return RankedBlock(
        rows=tuple(rows),
        columns=tuple(columns[k] for k in order),
        scores=scores[:, order],
        mean_ranks=mean_ranks[order],
        friedman=friedman(scores),
        critical_difference=critical,
        groups=tuple(cliques(mean_ranks[order], critical)),
    )


def _rank_over_datasets(
    tables: Sequence[DatasetTable], *, alpha: float, lower_is_better: bool, rope: float
) -> DatasetRanking | None:
    """The ranking, or None when fewer than two datasets share two encoders."""
    everyone = sorted({entry.name for table in tables for entry in table.entries})
    known = [{entry.name: entry.value for entry in table.entries} for table in tables]
    every = np.array([[values.get(name) for name in everyone] for values in known], dtype=np.float64)
    if len(tables) < 2 or len(everyone) < 2:
        return None
    block = ranked_block(every, alpha=alpha, lower_is_better=lower_is_better)
    if block is None:
        return None
    names = [everyone[k] for k in block.columns]
    ranked = [tables[k] for k in block.rows]
    left_out = [name for name in everyone if name not in names]
    listed = [everyone.index(name) for name in (*names, *left_out)]
    return DatasetRanking(
        names=tuple(names),
        datasets=tuple(table.dataset for table in ranked),
        mean_ranks=tuple(block.mean_ranks.tolist()),
        mean_values=tuple(block.scores.mean(axis=0).tolist()),
        friedman=block.friedman,
        critical_difference=block.critical_difference,
        nemenyi_p=tuple(map(tuple, nemenyi_p_values(block.mean_ranks, len(ranked)).tolist())),
        groups=tuple(tuple(names[k] for k in group) for group in block.groups),
        win_tie_loss=win_tie_loss([_shown_better(table, names, lower_is_better) for table in ranked]),
        left_out=tuple(left_out),
        notes=_ranking_notes(block.friedman, len(ranked), len(names), alpha),
        left_out_datasets=tuple(table.dataset for k, table in enumerate(tables) if k not in block.rows),
        run_on=tuple((everyone[k], int(np.isfinite(every[:, k]).sum())) for k in listed),
        rope=rope,
        chances=tuple(map(tuple, signed_ranks(every[:, listed], rope=rope, lower_is_better=lower_is_better))),
    )


def _shown_better(table: DatasetTable, names: list[str], lower_is_better: bool) -> list[list[float]]:
    """1 where the row is shown to be better than the column, -1 worse, 0 neither; NaN: not compared."""

    def outcome(first: str, second: str) -> float:
        pair = None if first == second else table.pair(first, second)
        if pair is None:
            return np.nan
        return float(np.sign(pair.difference)) * (-1 if lower_is_better else 1) if pair.holds else 0.0

    return [[outcome(first, second) for second in names] for first in names]


def _ranking_notes(test: Friedman, n_datasets: int, n_models: int, alpha: float) -> tuple[str, ...]:
    notes = []
    if test.p_value > alpha:
        notes.append("Friedman's test finds no difference between mean ranks: do not read the order as one")
    if n_datasets < 5:
        notes.append(f"{n_datasets} datasets are few for a ranking: mean ranks rarely differ significantly")
    if nemenyi_critical_difference(n_models, n_datasets, alpha=alpha) >= float(n_models - 1):
        notes.append("the critical difference exceeds the largest possible distance of two mean ranks")
    return tuple(notes)
