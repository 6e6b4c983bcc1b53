"""Intervals and tests for the runs of one task on one dataset, as much as the allowance permits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.statistics.delong import delong_all_pairs, delong_auroc
from histobench.core.statistics.intervals import Interval, percentile_intervals
from histobench.core.statistics.mcnemar import mcnemar_p_values
from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.paired import smallest_p_value
from histobench.core.statistics.resampling import Counts, SamplingDesign, iterate_counts
from histobench.report.headline import TESTED
from histobench.report.pairs import ALPHA, NO_PAIRS, Pairs, places_of_pairs, resampled_differences
from histobench.roi.comparison.comparison import resamples_for
from histobench.roi.comparison.image_groups import design_of, image_groups
from histobench.roi.comparison.metric_function import LABEL_METRICS, label_metrics
from histobench.roi.comparison.run_intervals import RESAMPLED, BootstrapSettings
from histobench.roi.comparison.same_images import aligned
from histobench.roi.metrics.formulas import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]
#: The seed of the resamples (that of `histobench compare`).
SEED = 42
TEST_NAMES = {
    "bootstrap": "paired bootstrap",
    "mcnemar": "McNemar's test of accuracy",
    "delong": "DeLong's test",
}


@dataclass(frozen=True)
class Allowance:
    """How much work one table may be: images x runs x resamples, and images x classes x runs to rank."""

    resampling: float = 2e8
    ranking: float = 1e6

    @classmethod
    def shared_by(cls, tables: int, *, thorough: bool = False) -> Allowance:
        """An equal share of what takes about a dozen seconds; without limit when thorough."""
        if thorough:
            return cls(math.inf, math.inf)
        return cls(1.6e9 / max(tables, 1), 6e6 / max(tables, 1))


@dataclass(frozen=True)
class MetricStatistics:
    """One metric of one table: best first. `test` is empty where nothing was tested, `note` says why."""

    order: tuple[str, ...]
    intervals: dict[str, Interval]
    pairs: Pairs = NO_PAIRS
    test: str = ""
    note: str = ""

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
    """Who is right where another is wrong: [m, m], and McNemar's p-value of each pair."""

    names: tuple[str, ...]
    only_first: NDArray[np.int64]  # row i, column j: images that i gets right and j does not
    p_values: Floats

    @classmethod
    def of(cls, predictions: Mapping[str, Predictions]) -> Discordance:
        """The counts of all pairs come from one product."""
        right = np.stack([run.predicted == run.labels for run in predictions.values()]).astype(np.float64)
        only = (right @ (1 - right).T).astype(np.int64)
        return cls(tuple(predictions), only, mcnemar_p_values(only, only.T))


@dataclass(frozen=True)
class TableStatistics:
    """Everything about one table; `problem` says why runs could not be compared."""

    metrics: dict[str, MetricStatistics] = field(default_factory=dict)
    discordance: Discordance | None = None
    n_images: int = 0
    n_groups: int | None = None
    resampled: str = ""
    n_resamples: int = 0
    problem: str = ""


def table_statistics(runs: Mapping[str, Predictions], allowance: Allowance) -> TableStatistics:
    """Intervals of all runs and tests of all pairs.

    Where the allowance permits, the numbers are those of `histobench compare`. Otherwise intervals come
    from 1000 resamples, and differences are judged by McNemar's test, which needs none; images in groups
    are not independent, so there a table that is too large stays untested, and says so.
    """
    try:
        predictions = aligned(runs)
    except HistobenchError as error:
        return TableStatistics(problem=str(error))
    reference = next(iter(predictions.values()))
    n, m = len(reference), len(predictions)
    if n == 0:
        return TableStatistics(problem="no predictions")
    design = design_of(reference)
    n_pairs = m * (m - 1) // 2
    wanted = resamples_for(n_pairs, "accuracy", ALPHA)
    affordable = min(allowance.resampling / (n * m), wanted)
    n_resamples = max(int(affordable), BootstrapSettings().n_bootstrap)
    observed, drawn = _resampled(predictions, design, n_resamples)
    discordance = Discordance.of(predictions)
    metrics: dict[str, MetricStatistics] = {}
    for metric in TESTED:
        if metric in LABEL_METRICS:
            metrics[metric] = _label_metric(metric, observed[metric], drawn[metric], design, discordance)
        else:
            cost = n * reference.probabilities.shape[1] * m
            metrics[metric] = _auroc(predictions, cost <= allowance.ranking)
    return TableStatistics(
        metrics=metrics,
        discordance=discordance,
        n_images=n,
        n_groups=design.n_units if design.is_clustered else None,
        resampled=RESAMPLED[design.kind],
        n_resamples=n_resamples,
    )


def _resampled(
    predictions: Mapping[str, Predictions], design: SamplingDesign, n_resamples: int
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Label metrics as observed [m], and on every resample [m, B]."""
    evaluate = label_metrics(predictions)
    wanted = [metric for metric in TESTED if metric in LABEL_METRICS]

    def tabled(counts: Counts) -> dict[str, Floats]:
        runs = evaluate(counts)
        return {metric: np.stack([values[metric] for values in runs.values()]) for metric in wanted}

    observed = tabled(np.ones((1, design.n_samples), dtype=np.int32))
    parts = [tabled(counts) for counts in iterate_counts(design, n_resamples, seed=SEED)]
    return (
        {metric: values[:, 0] for metric, values in observed.items()},
        {metric: np.concatenate([part[metric] for part in parts], axis=1) for metric in wanted},
    )


def _label_metric(
    metric: str, observed: Floats, drawn: Floats, design: SamplingDesign, discordance: Discordance
) -> MetricStatistics:
    values = dict(zip(discordance.names, observed.tolist(), strict=True))
    intervals = dict(zip(discordance.names, percentile_intervals(drawn), strict=True))
    order = _order(metric, values)
    names = tuple(name for name in order if not math.isnan(values[name]))
    if len(names) < 2:
        return MetricStatistics(order, intervals)
    place = np.array([discordance.names.index(name) for name in names])
    first, second = places_of_pairs(len(names))
    test, note = _choice(design, len(first), drawn.shape[1])
    low, high, p_value = resampled_differences(drawn[place], design, with_p=test != "mcnemar")
    if test == "mcnemar":
        p_value = discordance.p_values[place[first], place[second]]
    adjusted = holm(p_value) if test else np.full(len(p_value), np.nan)
    ordered = observed[place]
    pairs = Pairs(names, ordered[first] - ordered[second], low, high, p_value, adjusted)
    return MetricStatistics(order, intervals, pairs, test, note)


def _choice(design: SamplingDesign, n_pairs: int, n_resamples: int) -> tuple[str, str]:
    """Which test the table goes by, and what there is to say about it.

    A resampled p-value cannot be smaller than the number of resamples allows; there must be room for it to
    survive the correction.
    """
    if smallest_p_value(n_resamples, design) * n_pairs <= ALPHA / 2:
        return "bootstrap", ""
    if not design.is_clustered:
        return "mcnemar", (
            f"{n_pairs} pairs: differences go by McNemar's test of accuracy; "
            "--thorough resamples the metric itself"
        )
    if smallest_p_value(resamples_for(n_pairs, "accuracy", ALPHA), design) * n_pairs > ALPHA:
        return (
            "",
            f"{design.n_units} groups are too few for {n_pairs} corrected comparisons: no ties are marked",
        )
    return "", f"{n_pairs} pairs are not tested: that takes many resamples, which only --thorough draws"


def _auroc(predictions: Mapping[str, Predictions], affordable: bool) -> MetricStatistics:
    values: dict[str, float] = {}
    intervals: dict[str, Interval] = {}
    for name, run in predictions.items():
        scores, clusters = _scores(run), image_groups(run)
        try:
            area = delong_auroc(scores, run.labels, clusters=clusters)
            values[name] = area.value
            intervals[name] = Interval(*area.interval(), method="delong")
        except ValueError as error:
            values[name] = math.nan
            intervals[name] = Interval(None, None, method="delong", reason=str(error))
    order = _order("auroc", values)
    names = tuple(name for name in order if not math.isnan(values[name]))
    n_pairs = len(names) * (len(names) - 1) // 2
    if not n_pairs or not affordable:
        note = "" if affordable else f"{n_pairs} pairs are not tested; --thorough tests them"
        return MetricStatistics(order, intervals, note=note)
    reference = predictions[names[0]]
    every = delong_all_pairs(
        [_scores(predictions[name]) for name in names], reference.labels, clusters=image_groups(reference)
    )
    tests = [every[i, j] for i, j in combinations(range(len(names)), 2)]
    low, high = np.array([test.interval() for test in tests], dtype=np.float64).T
    p_value = np.array([test.p_value for test in tests])
    difference = np.array([test.difference for test in tests])
    return MetricStatistics(
        order, intervals, Pairs(names, difference, low, high, p_value, holm(p_value)), "delong"
    )


def _scores(run: Predictions) -> Floats:
    # With missing columns there is no AUROC; NaN ranks would silently give one.
    if not np.isfinite(run.probabilities).all():
        return np.empty((0, run.probabilities.shape[1]))
    return run.probabilities[:, 1] if run.probabilities.shape[1] == 2 else run.probabilities


def _order(metric: str, values: dict[str, float]) -> tuple[str, ...]:
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return tuple(sorted(values, key=lambda name: (math.isnan(values[name]), sign * values[name], name)))
