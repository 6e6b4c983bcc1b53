"""Intervals and tests for the runs of one task on one dataset, as much as the allowance permits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.statistics.delong import delong_all_pairs, delong_auroc
from histobench.core.statistics.intervals import Interval, percentile_intervals
from histobench.core.statistics.mcnemar import McNemar, mcnemar_from_counts
from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.paired import bootstrap_p_value, smallest_p_value
from histobench.core.statistics.resampling import SamplingDesign, iterate_counts
from histobench.report.headline import TESTED
from histobench.roi.comparison.comparison import resamples_for
from histobench.roi.comparison.image_groups import design_of, image_groups
from histobench.roi.comparison.metric_function import LABEL_METRICS, label_metrics
from histobench.roi.comparison.run_intervals import RESAMPLED, BootstrapSettings
from histobench.roi.comparison.same_images import aligned
from histobench.roi.metrics.formulas import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]
#: The family-wise error rate of every table, and the seed of the resamples (those of `histobench compare`).
ALPHA, SEED = 0.05, 42
#: Replicates of differences that are held at a time.
_NUMBERS_AT_ONCE = 4_000_000
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
class PairStatistics:
    """first - second on the same images."""

    first: str
    second: str
    difference: float
    interval: Interval | None
    p_value: float
    p_adjusted: float
    only_first: int
    only_second: int

    @property
    def holds(self) -> bool:
        """Whether the difference is real at the table's error rate."""
        return self.p_adjusted <= ALPHA


@dataclass(frozen=True)
class MetricStatistics:
    """One metric of one table: best first. `test` is empty where nothing was tested, `note` says why."""

    order: tuple[str, ...]
    intervals: dict[str, Interval]
    pairs: tuple[PairStatistics, ...] = ()
    test: str = ""
    note: str = ""

    def standing(self, name: str) -> str:
        """`best`, `tie` (not distinguishable from the best), `behind`, or `untested`."""
        if not self.test or not self.order:
            return "untested"
        return "best" if name == self.order[0] else self._against_best.get(name, "untested")

    @cached_property
    def _against_best(self) -> dict[str, str]:
        best = self.order[0]
        return {
            pair.second if pair.first == best else pair.first: "behind" if pair.holds else "tie"
            for pair in self.pairs
            if best in (pair.first, pair.second)
        }


@dataclass(frozen=True)
class TableStatistics:
    """Everything about one table; `problem` says why runs could not be compared."""

    metrics: dict[str, MetricStatistics] = field(default_factory=dict)
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
    observed, replicates = _resampled(predictions, design, n_resamples)
    exact = _exact_tests(predictions)
    metrics: dict[str, MetricStatistics] = {}
    for metric in TESTED:
        if metric in LABEL_METRICS:
            values = {name: observed[name][metric] for name in predictions}
            drawn = {name: replicates[name][metric] for name in predictions}
            metrics[metric] = _label_metric(metric, values, drawn, design, exact, n_resamples)
        else:
            cost = n * reference.probabilities.shape[1] * m
            metrics[metric] = _auroc(predictions, exact, cost <= allowance.ranking)
    return TableStatistics(
        metrics=metrics,
        n_images=n,
        n_groups=design.n_units if design.is_clustered else None,
        resampled=RESAMPLED[design.kind],
        n_resamples=n_resamples,
    )


def _resampled(
    predictions: Mapping[str, Predictions], design: SamplingDesign, n_resamples: int
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, Floats]]]:
    """Label metrics as observed, and on every resample."""
    evaluate = label_metrics(predictions)
    whole = evaluate(np.ones((1, design.n_samples), dtype=np.int32))
    wanted = [metric for metric in TESTED if metric in LABEL_METRICS]
    parts: dict[str, dict[str, list[Floats]]] = {name: {metric: [] for metric in wanted} for name in whole}
    for counts in iterate_counts(design, n_resamples, seed=SEED):
        for name, values in evaluate(counts).items():
            for metric in wanted:
                parts[name][metric].append(values[metric])
    observed = {
        name: {metric: float(values[metric][0]) for metric in wanted} for name, values in whole.items()
    }
    drawn = {
        name: {metric: np.concatenate(chunks) for metric, chunks in values.items()}
        for name, values in parts.items()
    }
    return observed, drawn


def _label_metric(
    metric: str,
    values: dict[str, float],
    drawn: dict[str, Floats],
    design: SamplingDesign,
    exact: Mapping[tuple[str, str], McNemar],
    n_resamples: int,
) -> MetricStatistics:
    order = _order(metric, values)
    intervals = dict(zip(drawn, percentile_intervals(np.stack(list(drawn.values()))), strict=True))
    names = [name for name in order if not math.isnan(values[name])]
    couples = list(combinations(names, 2))
    if not couples:
        return MetricStatistics(order, intervals)
    test, note = _choice(design, len(couples), n_resamples)
    tests = [_of(exact, a, b) for a, b in couples]
    differences, raw = [], []
    for a, b, interval, p_value in _differences(couples, drawn, design, with_p=test != "mcnemar"):
        differences.append((values[a] - values[b], interval))
        raw.append(p_value)
    if test == "mcnemar":
        raw = [found.p_value for found in tests]
    corrected = holm(raw) if test else np.full(len(raw), np.nan)
    pairs = tuple(
        PairStatistics(a, b, difference, interval, p, float(adjusted), found.only_first, found.only_second)
        for (a, b), (difference, interval), found, p, adjusted in zip(
            couples, differences, tests, raw, corrected, strict=True
        )
    )
    return MetricStatistics(order, intervals, pairs, test, note)


def _differences(
    couples: list[tuple[str, str]], drawn: dict[str, Floats], design: SamplingDesign, *, with_p: bool
) -> Iterator[tuple[str, str, Interval, float]]:
    """Interval and p-value of every paired difference, a few pairs at a time."""
    length = len(next(iter(drawn.values())))
    step = max(1, _NUMBERS_AT_ONCE // length)
    for start in range(0, len(couples), step):
        part = couples[start : start + step]
        rows = np.stack([drawn[a] - drawn[b] for a, b in part])
        for (a, b), row, interval in zip(
            part, rows, percentile_intervals(rows, level=1 - ALPHA), strict=True
        ):
            yield a, b, interval, bootstrap_p_value(row, design) if with_p else math.nan


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


def _auroc(
    predictions: Mapping[str, Predictions],
    exact: Mapping[tuple[str, str], McNemar],
    affordable: bool,
) -> MetricStatistics:
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
    names = [name for name in order if not math.isnan(values[name])]
    couples = list(combinations(names, 2))
    if not couples or not affordable:
        note = "" if affordable else f"{len(couples)} pairs are not tested; --thorough tests them"
        return MetricStatistics(order, intervals, note=note)
    reference = predictions[names[0]]
    every = delong_all_pairs(
        [_scores(predictions[name]) for name in names], reference.labels, clusters=image_groups(reference)
    )
    tests = [every[names.index(a), names.index(b)] for a, b in couples]
    pairs = tuple(
        PairStatistics(
            a,
            b,
            test.difference,
            Interval(*test.interval(), method="delong"),
            test.p_value,
            float(adjusted),
            _of(exact, a, b).only_first,
            _of(exact, a, b).only_second,
        )
        for (a, b), test, adjusted in zip(couples, tests, holm([t.p_value for t in tests]), strict=True)
    )
    return MetricStatistics(order, intervals, pairs, "delong")


def _scores(run: Predictions) -> Floats:
    # With missing columns there is no AUROC; NaN ranks would silently give one.
    if not np.isfinite(run.probabilities).all():
        return np.empty((0, run.probabilities.shape[1]))
    return run.probabilities[:, 1] if run.probabilities.shape[1] == 2 else run.probabilities


def _order(metric: str, values: dict[str, float]) -> tuple[str, ...]:
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return tuple(sorted(values, key=lambda name: (math.isnan(values[name]), sign * values[name], name)))


def _exact_tests(predictions: Mapping[str, Predictions]) -> dict[tuple[str, str], McNemar]:
    """McNemar's test of every pair; the counts of all pairs come from one product."""
    names = list(predictions)
    right = np.stack([run.predicted == run.labels for run in predictions.values()]).astype(np.float64)
    only = (right @ (1 - right).T).astype(int)
    return {
        (names[i], names[j]): _mcnemar(int(only[i, j]), int(only[j, i]))
        for i, j in combinations(range(len(names)), 2)
    }


@lru_cache(maxsize=65536)
def _mcnemar(only_first: int, only_second: int) -> McNemar:
    return mcnemar_from_counts(only_first, only_second)


def _of(exact: Mapping[tuple[str, str], McNemar], a: str, b: str) -> McNemar:
    if (a, b) in exact:
        return exact[a, b]
    found = exact[b, a]
    return replace(found, only_first=found.only_second, only_second=found.only_first)


def exact_test(pair: PairStatistics) -> McNemar:
    """McNemar's test of the pair's accuracy, for the compare page."""
    return _mcnemar(pair.only_first, pair.only_second)
