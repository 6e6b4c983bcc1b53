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
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.jackknife import LeaveOneOut
from histobench.core.statistics.mcnemar import clustered_mcnemar_p_values, mcnemar_p_values
from histobench.roi.comparison.episode_intervals import crossed_intervals
from histobench.roi.comparison.episode_table import EpisodeTable, episode_tables
from histobench.roi.comparison.left_out_table import intervals_of_table, left_out_table
from histobench.roi.comparison.metric_intervals import METHOD, why_no_interval
from histobench.roi.comparison.pairs import ALPHA, NO_PAIRS, Pairs
from histobench.roi.comparison.run_intervals import RESAMPLED
from histobench.roi.comparison.same_images import aligned
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.comparison.standings import Standings, standings_of
from histobench.roi.metrics.catalogue import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions
from histobench.roi.results.stored_run import StoredRun

Floats = NDArray[np.float64]
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
class Discordance:
    """Who is right where another is wrong: [m, m], and McNemar's p-value (clustered form over groups)."""

    names: tuple[str, ...]
    only_first: NDArray[np.int64]  # row i, column j: images that i gets right and j does not
    p_values: Floats

    @classmethod
    def of(cls, predictions: Mapping[str, Predictions], units: SamplingUnits) -> Discordance:
        """The counts of all pairs come from one product."""
        right = np.stack([run.predicted == run.labels for run in predictions.values()]).astype(np.float64)
        only = (right @ (1 - right).T).astype(np.int64)
        if units.group_of is None:
            return cls(tuple(predictions), only, mcnemar_p_values(only, only.T))
        return cls(tuple(predictions), only, clustered_mcnemar_p_values(right, units.group_of))


@dataclass(frozen=True)
class TableStatistics:
    """Everything about one table; `problem` says why runs could not be compared."""

    metrics: dict[str, MetricStatistics] = field(default_factory=dict)
    discordance: Discordance | None = None
    n_images: int = 0
    n_groups: int | None = None
    resampled: str = ""  # what was left out one at a time, in words
    problem: str = ""


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
        means = None if stored is None else episode_tables(stored, reference, units, TESTED)
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    if means is not None:
        return TableStatistics(
            metrics={metric: statistics_of_means(metric, table, units) for metric, table in means.items()},
            n_images=len(reference),
            n_groups=None if units.group_of is None else units.n_units,
            resampled=next((table.resampled for table in means.values()), ""),
        )
    tables = left_out_table(predictions, TESTED, units)
    return TableStatistics(
        metrics={
            metric: _as_reported(metric, metric_statistics(metric, found, predictions, units), found, stored)
            for metric, found in tables.items()
        },
        discordance=Discordance.of(predictions, units),
        n_images=len(reference),
        n_groups=None if units.group_of is None else units.n_units,
        resampled=RESAMPLED["plain" if units.group_of is None else "cluster"],
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
    metric: str,
    found: LeaveOneOut,
    predictions: Mapping[str, Predictions],
    units: SamplingUnits,
    *,
    alpha: float = ALPHA,
) -> MetricStatistics:
    """One metric of all runs, from its values with each unit left out."""
    intervals = intervals_of_table(metric, found, predictions, units, level=1 - alpha)
    return _tested(metric, found, units, intervals, alpha, predictions)


def statistics_of_means(
    metric: str, table: EpisodeTable, units: SamplingUnits, *, alpha: float = ALPHA
) -> MetricStatistics:
    """A metric that every run reports as a mean over episodes."""
    if table.note:  # over episodes alone: that is about these test images only, and no others
        order, untested = _untested(metric, table.found)
        none = Interval(None, None, 1 - alpha, METHOD, reason=table.note)
        intervals = dict.fromkeys(table.found.names, none)
        return MetricStatistics(order, intervals, untested, note=f"{table.note}: nothing is tested")
    intervals = crossed_intervals(table.found, metric, units, level=1 - alpha)
    return _tested(metric, table.found, units, intervals, alpha)


def _tested(
    metric: str,
    found: LeaveOneOut,
    units: SamplingUnits,
    intervals: dict[str, Interval],
    alpha: float,
    predictions: Mapping[str, Predictions] | None = None,
) -> MetricStatistics:
    order, untested = _untested(metric, found)
    statistics = MetricStatistics(order, intervals, untested, note=units.caution() or "")
    reason = why_no_interval(metric, units)
    if reason is not None:  # what allows no interval of a value allows none of a difference, and no rank
        note = f"{reason.removeprefix('no interval: ')}: differences are not tested, and no ties are marked"
        return replace(statistics, note=note)
    together = standings_of(found, metric, units, intervals, runs=predictions, alpha=alpha)
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
