"""Intervals and tests for the runs of one task on one dataset; every table and page shows these.

A difference is shown where its interval, which holds for all pairs of the table at once (max-t), excludes 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.episode_intervals import episode_tables
from histobench.roi.comparison.left_out_table import TargetTable, left_out_table
from histobench.roi.comparison.metric_intervals import (
    metric_intervals,
    no_interval,
    range_of,
    why_no_interval,
)
from histobench.roi.comparison.sampling_units import SamplingUnits, aligned
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import Floats, LeaveOneOut
from histobench.statistics.many_models import (
    SimultaneousPairs,
    WinnerValue,
    best_set,
    rank_intervals,
    simultaneous_pairs,
    winner_value,
)

#: The family-wise error rate of every table.
ALPHA = 0.05
#: How tables call the test that decides.
MAX_T = "paired jackknife t-tests, max-t correction for all pairs"


@dataclass(frozen=True)
class Pairs:
    """One row for each pair, first - second on the same images; NaN where there is no number.

    `low`, `high` and `p_adjusted` are for all pairs at once; `own_low`, `own_high` and `p_value` as if the
    pair were the only one.
    """

    names: tuple[str, ...]  # best first
    difference: Floats
    low: Floats
    high: Floats
    p_value: Floats
    p_adjusted: Floats
    own_low: Floats
    own_high: Floats
    alpha: float = ALPHA

    @classmethod
    def of(cls, names: tuple[str, ...], together: SimultaneousPairs, *, alpha: float = ALPHA) -> Pairs:
        place = np.array([together.names.index(name) for name in names])
        first, second = places_of_pairs(len(names))
        cells = place[first], place[second]
        own_low, own_high = together.alone()
        return cls(
            names=names,
            difference=together.difference[cells],
            low=together.low[cells],
            high=together.high[cells],
            p_value=together.p_value[cells],
            p_adjusted=together.p_adjusted[cells],
            own_low=own_low[cells],
            own_high=own_high[cells],
            alpha=alpha,
        )

    @classmethod
    def untested(cls, names: tuple[str, ...], values: Floats, alpha: float) -> Pairs:
        first, second = places_of_pairs(len(names))
        low, high, p, adjusted, own_low, own_high = np.full((6, len(first)), np.nan)
        return cls(names, values[first] - values[second], low, high, p, adjusted, own_low, own_high, alpha)

    def __len__(self) -> int:
        return len(self.difference)

    @property
    def places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where the first and the second run of each pair stand among the names."""
        return places_of_pairs(len(self.names))

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether the difference is shown: the rule that marks, ties, ranks and sets of the best go by."""
        return self.p_adjusted < self.alpha


NO_PAIRS = Pairs((), *np.empty((7, 0)))


def places_of_pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    first, second = np.triu_indices(n, 1)
    return first, second


@dataclass(frozen=True)
class Standings:
    """What holds for all encoders of a table at once."""

    ranks: dict[str, tuple[int, int]]
    best: tuple[str, ...]  # those that may be it
    winner: WinnerValue


#: Metrics whose differences are tested for every pair of encoders.
TESTED = ("balanced_accuracy", "accuracy", "f1_score", "mcc", "auroc")


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
        # The pairs of the first name come first.
        holds = zip(self.pairs.names[1:], self.pairs.holds.tolist(), strict=False)
        return {name: "behind" if behind else "tie" for name, behind in holds}


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
    try:
        table = TargetTable.of({name: run.target_predictions for name, run in runs.items()})
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    metrics = {metric: target_statistics(metric, table) for metric in table.found if "@" not in metric}
    labels = {metric: table.intervals(metric) for metric in table.found if "@" in metric}
    units = table.units
    return TableStatistics(metrics, len(units.labels), units.n_groups, table.resampled, labels=labels)


def table_statistics(
    runs: Mapping[str, Predictions], stored: Mapping[str, StoredRun] | None = None
) -> TableStatistics:
    """Intervals of all runs and tests of all pairs; the numbers are those of `histobench compare`.

    With the `stored` runs, those that report means over episodes are compared by these means.
    """
    try:
        predictions = aligned(runs)
        reference = next(iter(predictions.values()))
        if len(reference) == 0:
            return TableStatistics(problem="no predictions")
        units = SamplingUnits.of(reference)
        means = None if stored is None else episode_tables(stored, predictions, units, TESTED)
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    if means is not None:
        metrics = {
            metric: metric_statistics(metric, table.found, units, note=table.note)
            for metric, table in means.items()
        }
        words = next((table.resampled for table in means.values()), "")
        return TableStatistics(metrics, len(reference), units.n_groups, words)
    metrics = {
        metric: _as_reported(metric, metric_statistics(metric, found, units), found, stored)
        for metric, found in left_out_table(predictions, TESTED, units).items()
    }
    return TableStatistics(metrics, len(reference), units.n_groups, units.resampled)


def _as_reported(
    metric: str, statistics: MetricStatistics, found: LeaveOneOut, stored: Mapping[str, StoredRun] | None
) -> MetricStatistics:
    """The statistics, unless they are of other values than those that the runs' files report."""
    reported = {} if stored is None else {name: run.metrics.get(metric) for name, run in stored.items()}
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    if all(value is None or not abs(value - values[name]) > 1e-6 for name, value in reported.items()):
        return statistics
    order, untested = _untested(metric, found, ALPHA)
    note = "some runs report means over episodes and some do not: nothing is tested"
    return MetricStatistics(order, {}, untested, note=note)


def metric_statistics(
    metric: str,
    found: LeaveOneOut,
    units: SamplingUnits,
    *,
    alpha: float = ALPHA,
    note: str = "",
    intervals: dict[str, Interval] | None = None,
) -> MetricStatistics:
    """One metric of all runs, from its values with each unit left out; `note`: why nothing can be tested."""
    order, untested = _untested(metric, found, alpha)
    if note:
        without = dict.fromkeys(found.names, no_interval(note, 1 - alpha))
        said = f"{note.removeprefix('no interval: ')}: nothing is tested"
        return MetricStatistics(order, without, untested, note=said)
    intervals = intervals or metric_intervals(metric, found, units, level=1 - alpha)
    statistics = MetricStatistics(order, intervals, untested, note=units.caution() or "")
    reason = why_no_interval(metric, units)
    if reason is not None:  # what allows no interval of a value allows none of a difference, and no rank
        note = f"{reason.removeprefix('no interval: ')}: differences are not tested"
        return replace(statistics, note=note)
    # In the order of their names: what is drawn for the winner's value must not depend on the order of files.
    names = sorted(untested.names)
    if len(names) < 2:
        return statistics
    found, lower, within = found.columns(names), metric in LOWER_IS_BETTER, range_of(metric, units.n_columns)
    together = simultaneous_pairs(found, level=1 - alpha, lower_is_better=lower, span=within[1] - within[0])
    pairs = Pairs.of(untested.names, together, alpha=alpha)
    if not np.isfinite(pairs.p_adjusted).any():  # one image, or one of a class: nothing shows how it varies
        return replace(statistics, pairs=pairs)
    possible = rank_intervals(together.better).tolist()
    ranks = {name: (first, last) for name, (first, last) in zip(names, possible, strict=True)}
    winner = names[int((found.values if lower else -found.values).argmin())]
    value = winner_value(found, intervals[winner], lower_is_better=lower, within=within)
    standings = Standings(ranks, best_set(together), value)
    return replace(statistics, pairs=pairs, test="max-t", standings=standings)


def target_statistics(metric: str, table: TargetTable, *, alpha: float = ALPHA) -> MetricStatistics:
    found, intervals = table.found[metric], table.intervals(metric, level=1 - alpha)
    return metric_statistics(metric, found, table.units, alpha=alpha, note=table.note, intervals=intervals)


def _untested(metric: str, found: LeaveOneOut, alpha: float) -> tuple[tuple[str, ...], Pairs]:
    """All names, best first, and the bare differences of those that have a value."""
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    order = order_of(metric, values)
    names = tuple(name for name in order if not math.isnan(values[name]))
    if len(names) < 2:
        return order, NO_PAIRS
    return order, Pairs.untested(names, np.array([values[name] for name in names]), alpha)


def order_of(metric: str, values: Mapping[str, float]) -> tuple[str, ...]:
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return tuple(sorted(values, key=lambda name: (math.isnan(values[name]), sign * values[name], name)))
