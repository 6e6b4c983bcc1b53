"""Intervals and tests for the runs of one task on one dataset: all pairs of tested metrics, in columns.

`histobench compare`, the Python tables and the report all draw what is computed here, so that they agree. One
rule decides: a difference is shown where its interval, which holds for all pairs of the table at once
(max-t), excludes 0. Ties, ranks, the set of the best and the marks in all tables follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.episode_intervals import EpisodeTable, episode_tables
from histobench.roi.comparison.left_out_table import TargetTable, left_out_table
from histobench.roi.comparison.metric_intervals import (
    metric_intervals,
    no_interval,
    range_of,
    why_no_interval,
)
from histobench.roi.comparison.pairs import ALPHA, NO_PAIRS, Pairs
from histobench.roi.comparison.sampling_units import SamplingUnits, aligned
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut
from histobench.statistics.many_models import (
    BestSet,
    SimultaneousPairs,
    WinnerValue,
    best_set,
    rank_intervals,
    simultaneous_pairs,
    winner_value,
)

# Where the encoders of one table stand, as far as the test set can tell: pairs, ranks, the best, the
# winner.


@dataclass(frozen=True)
class Standings:
    """What holds for all encoders of a table at once."""

    pairs: SimultaneousPairs
    ranks: dict[str, tuple[int, int]]
    best: BestSet
    winner: WinnerValue


def standings_of(
    found: LeaveOneOut,
    metric: str,
    units: SamplingUnits,
    intervals: Mapping[str, Interval],
    *,
    alpha: float = 0.05,
) -> Standings | None:
    """The standings from one metric of all encoders with each unit left out; None with fewer than two.

    `intervals` are those of the values.
    """
    # In the order of their names: what is drawn for the winner's value must not depend on the order of files.
    names = sorted(name for name, value in zip(found.names, found.values, strict=True) if np.isfinite(value))
    if len(names) < 2:
        return None
    found = found.columns(names)
    lower, within = metric in LOWER_IS_BETTER, range_of(metric, units.n_columns)
    pairs = simultaneous_pairs(found, level=1 - alpha, lower_is_better=lower, span=within[1] - within[0])
    ranks = rank_intervals(pairs.better)
    winner = names[int((found.values if lower else -found.values).argmin())]
    return Standings(
        pairs=pairs,
        ranks={name: (int(row[0]), int(row[1])) for name, row in zip(names, ranks, strict=True)},
        best=best_set(pairs),
        winner=winner_value(found, intervals[winner], lower_is_better=lower, within=within),
    )


#: Metrics whose differences are tested for every pair of encoders.
TESTED = ("balanced_accuracy", "accuracy", "f1_score", "mcc", "quadratic_kappa", "auroc")


@dataclass(frozen=True)
class MetricStatistics:
    """One metric of one table: best first. `test` is empty where nothing was tested, `note` says why."""

    order: tuple[str, ...]
    intervals: dict[str, Interval]
    pairs: Pairs = NO_PAIRS
    test: str = ""  # "max-t", or empty
    note: str = ""
    standings: Standings | None = None  # what holds for all encoders at once; None where nothing was tested

    def standing(self, name: str) -> str:
        """`best`, `tie` (not distinguishable from the best), `behind`, or `untested`."""
        if not self.test or not self.order:
            return "untested"
        return "best" if name == self.order[0] else self._against_best.get(name, "untested")

    @cached_property
    def _against_best(self) -> dict[str, str]:
        return {name: "behind" if holds else "tie" for name, holds in self.pairs.against_best().items()}


@dataclass(frozen=True)
class TableStatistics:
    """Everything about one table; `problem` says why runs could not be compared."""

    metrics: dict[str, MetricStatistics] = field(default_factory=dict)
    n_images: int = 0
    n_groups: int | None = None
    resampled: str = ""  # what was left out one at a time, in words
    problem: str = ""
    #: Of several labels: "auroc@0" -> run -> interval of the first label's.
    labels: dict[str, dict[str, Interval]] = field(default_factory=dict)


def table_of_target(runs: Mapping[str, StoredRun]) -> TableStatistics:
    """As `table_statistics`, of runs whose target is not a class."""
    try:
        table = TargetTable.of({name: run.target_predictions for name, run in runs.items()})
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    return TableStatistics(
        metrics={metric: target_statistics(metric, table) for metric in table.found if "@" not in metric},
        n_images=len(table.reference),
        n_groups=table.units.n_groups,
        resampled=table.resampled,
        labels={metric: table.intervals(metric) for metric in table.found if "@" in metric},
    )


def table_statistics(
    runs: Mapping[str, Predictions], stored: Mapping[str, StoredRun] | None = None
) -> TableStatistics:
    """Intervals of all runs and tests of all pairs; the numbers are those of `histobench compare`.

    With the `stored` runs, those that report means over episodes are compared by these means.
    """
    try:
        predictions = aligned(runs)
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    reference = next(iter(predictions.values()))
    if len(reference) == 0:
        return TableStatistics(problem="no predictions")
    units = SamplingUnits.of(reference)
    try:
        means = None if stored is None else episode_tables(stored, predictions, units, TESTED)
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    if means is not None:
        return TableStatistics(
            metrics={metric: statistics_of_means(metric, table, units) for metric, table in means.items()},
            n_images=len(reference),
            n_groups=units.n_groups,
            resampled=next((table.resampled for table in means.values()), ""),
        )
    tables = left_out_table(predictions, TESTED, units)
    return TableStatistics(
        metrics={
            metric: _as_reported(metric, metric_statistics(metric, found, units), found, stored)
            for metric, found in tables.items()
        },
        n_images=len(reference),
        n_groups=units.n_groups,
        resampled=units.resampled,
    )


def _as_reported(
    metric: str, statistics: MetricStatistics, found: LeaveOneOut, stored: Mapping[str, StoredRun] | None
) -> MetricStatistics:
    """The statistics, unless they are of other values than those that the runs' files report."""
    reported = {} if stored is None else {name: run.metrics.get(metric) for name, run in stored.items()}
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    if all(value is None or not abs(value - values[name]) > 1e-6 for name, value in reported.items()):
        return statistics
    order, untested = _untested(metric, found)
    note = "some runs report means over episodes and some do not: nothing is tested"
    return MetricStatistics(order, {}, untested, note=note)


def metric_statistics(
    metric: str, found: LeaveOneOut, units: SamplingUnits, *, alpha: float = ALPHA
) -> MetricStatistics:
    """One metric of all runs, from its values with each unit left out."""
    return _tested(metric, found, units, metric_intervals(metric, found, units, level=1 - alpha), alpha)


def target_statistics(metric: str, table: TargetTable, *, alpha: float = ALPHA) -> MetricStatistics:
    """A metric of a target that is not a class."""
    if table.note:
        return _without_intervals(metric, table.found[metric], table.note, alpha)
    intervals = table.intervals(metric, level=1 - alpha)
    return _tested(metric, table.found[metric], table.units, intervals, alpha)


def statistics_of_means(
    metric: str, table: EpisodeTable, units: SamplingUnits, *, alpha: float = ALPHA
) -> MetricStatistics:
    """A metric that every run reports as a mean over episodes."""
    if table.note:
        return _without_intervals(metric, table.found, table.note, alpha)
    intervals = metric_intervals(metric, table.found, units, level=1 - alpha)
    return _tested(metric, table.found, units, intervals, alpha)


def _without_intervals(metric: str, found: LeaveOneOut, note: str, alpha: float) -> MetricStatistics:
    order, untested = _untested(metric, found)
    intervals = dict.fromkeys(found.names, no_interval(note, 1 - alpha))
    said = f"{note.removeprefix('no interval: ')}: nothing is tested"
    return MetricStatistics(order, intervals, untested, note=said)


def _tested(
    metric: str,
    found: LeaveOneOut,
    units: SamplingUnits,
    intervals: dict[str, Interval],
    alpha: float,
) -> MetricStatistics:
    order, untested = _untested(metric, found)
    statistics = MetricStatistics(order, intervals, untested, note=units.caution() or "")
    reason = why_no_interval(metric, units)
    if reason is not None:  # what allows no interval of a value allows none of a difference, and no rank
        note = f"{reason.removeprefix('no interval: ')}: differences are not tested"
        return replace(statistics, note=note)
    together = standings_of(found, metric, units, intervals, alpha=alpha)
    if together is None:
        return statistics
    pairs = Pairs.of(untested.names, together.pairs, alpha=alpha)
    if not np.isfinite(pairs.p_adjusted).any():  # one image, or one of a class: nothing shows how it varies
        return replace(statistics, pairs=pairs)
    return replace(statistics, pairs=pairs, test="max-t", standings=together)


def _untested(metric: str, found: LeaveOneOut) -> tuple[tuple[str, ...], Pairs]:
    """All names, best first, and the bare differences of those that have a value."""
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    order = order_of(metric, values)
    names = tuple(name for name in order if not math.isnan(values[name]))
    if len(names) < 2:
        return order, NO_PAIRS
    return order, Pairs.untested(names, np.array([values[name] for name in names]))


def order_of(metric: str, values: Mapping[str, float]) -> tuple[str, ...]:
    """Names, best first; those without a value last."""
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return tuple(sorted(values, key=lambda name: (math.isnan(values[name]), sign * values[name], name)))
