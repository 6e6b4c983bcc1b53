"""Encoders against each other: a ranked table for each dataset, every pair tested, Holm within the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.statistics.intervals import Interval, most_unseen, percentile_interval
from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.paired import PairedDifference, paired_difference, smallest_p_value
from histobench.core.statistics.resampling import SamplingDesign, replicates_of_all
from histobench.roi.comparison.dataset_ranking import DatasetRanking, rank_over_datasets
from histobench.roi.comparison.image_groups import design_of
from histobench.roi.comparison.metric_function import LABEL_METRICS, check_metric, one_metric
from histobench.roi.comparison.pair_tests import TESTS, PairTests, chosen_test, pair_tests
from histobench.roi.comparison.random_state import check_random_state
from histobench.roi.comparison.run_intervals import RESAMPLED
from histobench.roi.comparison.same_images import aligned
from histobench.roi.comparison.selection import by_dataset, distinct_names
from histobench.roi.comparison.standings import Standings, standings_of
from histobench.roi.metrics.formulas import LOWER_IS_BETTER
from histobench.roi.predictions import Predictions
from histobench.roi.results.stored_run import StoredRun

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """One encoder's line in a ranked table."""

    name: str
    rank: int | None
    value: float | None
    interval: Interval
    reported: float | None  # what the run's own file says; differs for few-shot (mean over episodes)
    caveats: tuple[str, ...] = ()  # what the run's own file says to keep in mind


@dataclass(frozen=True)
class Pair:
    """Two encoders on the same images: first - second."""

    first: str
    second: str
    difference: float
    interval: Interval
    tests: PairTests
    p_value: float  # of the table's test
    p_adjusted: float  # Holm over all pairs of the table
    holds: bool  # the simultaneous interval excludes 0; where a test was asked for: p_adjusted <= alpha
    simultaneous: Interval  # holds together with those of all other pairs (max-t)
    p_simultaneous: float

    def reversed(self) -> Pair:
        """The same comparison seen from the other side."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            interval=self.interval.negated(),
            tests=self.tests.reversed(),
            simultaneous=self.simultaneous.negated(),
        )


@dataclass(frozen=True)
class DatasetTable:
    """The comparison on one dataset: entries best first, all pairs better encoder first."""

    dataset: str
    entries: tuple[Entry, ...]
    pairs: tuple[Pair, ...]
    n_images: int
    n_groups: int | None
    resampled: str  # in words
    n_resamples: int
    test: str  # "bootstrap", "mcnemar" or "delong"
    notes: tuple[str, ...] = ()
    standings: Standings | None = (
        None  # None with fewer than two values, or values that are means over episodes
    )

    def pair(self, first: str, second: str) -> Pair | None:
        """The comparison first - second, or None where it was not possible."""
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair
            if (pair.first, pair.second) == (second, first):
                return pair.reversed()
        return None


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


@dataclass(frozen=True)
class CompareSettings:
    """How encoders are compared."""

    metric: str = "balanced_accuracy"
    alpha: float = 0.05
    n_bootstrap: int | None = None  # None: as many as the number of pairs asks for
    random_state: int = 42
    test: str = "auto"
    rope: float = 0.01  # differences up to this are equivalent in practice (over datasets)

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not 0 < self.alpha < 1:
            raise HistobenchError(f"--alpha must lie between 0 and 1, not {self.alpha:g}")
        if self.n_bootstrap is not None and self.n_bootstrap < 2:
            raise HistobenchError(f"--n_bootstrap must be at least 2, not {self.n_bootstrap}")
        check_random_state(self.random_state)
        if not 0 <= self.rope < 1:
            raise HistobenchError(f"--rope must be at least 0 and below 1, not {self.rope:g}")
        if self.test not in TESTS:
            raise HistobenchError(f"unknown test {self.test!r}; known: {', '.join(TESTS)}")


def compare_runs(runs: Sequence[StoredRun], settings: CompareSettings) -> Comparison:
    """Compare runs of one task and setting (see `select_runs`), dataset by dataset and over datasets."""
    if not runs:
        raise HistobenchError("nothing to compare: no run was selected")
    tables = tuple(_table(dataset, members, settings) for dataset, members in by_dataset(runs).items())
    lower = settings.metric in LOWER_IS_BETTER
    return Comparison(
        metric=settings.metric,
        task=runs[0].task,
        setting=runs[0].setting,
        presets=tuple(sorted({run.identity.preset for run in runs})),
        alpha=settings.alpha,
        lower_is_better=lower,
        tables=tables,
        ranking=rank_over_datasets(tables, alpha=settings.alpha, lower_is_better=lower, rope=settings.rope),
        seeds=tuple(sorted({run.identity.seed for run in runs})),
    )


def resamples_for(n_pairs: int, metric: str, alpha: float) -> int:
    """Resamples by default: enough for the smallest p-value to survive the correction with room to spare.

    Metrics that need rankings or probabilities take longer, so they get at most 5000.

    >>> resamples_for(1, "accuracy", 0.05), resamples_for(190, "accuracy", 0.05)
    (10000, 30400)
    """
    if metric in LABEL_METRICS:
        return max(10_000, math.ceil(8 * n_pairs / alpha))
    return min(5000, max(2000, math.ceil(8 * n_pairs / alpha)))


def _table(dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable:
    named = distinct_names(runs)
    predictions = aligned({name: run.predictions for name, run in named.items()}, dataset=dataset)
    reference = next(iter(predictions.values()))
    if len(reference) == 0:
        raise HistobenchError(f"the runs on {dataset or 'this dataset'} hold no predictions to compare")
    design = design_of(reference)
    level = 1 - settings.alpha
    evaluate = one_metric(predictions, settings.metric)
    observed = {
        name: float(values[0])
        for name, values in evaluate(np.ones((1, len(reference)), dtype=np.int32)).items()
    }
    n_pairs = len(named) * (len(named) - 1) // 2
    n_resamples = settings.n_bootstrap or resamples_for(n_pairs, settings.metric, settings.alpha)
    resampled = replicates_of_all(evaluate, design, n_resamples=n_resamples, seed=settings.random_state)
    entries = _entries(named, observed, resampled, settings.metric, level)
    test = chosen_test(settings.test, settings.metric, reference)
    whole = not any(_is_mean_over_episodes(entry) for entry in entries)
    standings = standings_of(predictions, settings.metric, design, alpha=settings.alpha) if whole else None
    pairs = _pairs(entries, predictions, resampled, design, test, settings.alpha)
    if standings is not None:
        pairs = tuple(_together(pair, standings, settings.test == "auto") for pair in pairs)
    return DatasetTable(
        dataset=dataset,
        entries=entries,
        pairs=pairs,
        n_images=len(reference),
        n_groups=design.n_units if design.is_clustered else None,
        resampled=RESAMPLED[design.kind],
        n_resamples=n_resamples,
        test=test,
        notes=_notes(entries, pairs, design, test, n_resamples, settings.alpha),
        standings=standings,
    )


def _is_mean_over_episodes(entry: Entry) -> bool:
    """Whether the run reports something else than the metric of its stored predictions."""
    return entry.value is not None and entry.reported is not None and abs(entry.value - entry.reported) > 1e-6


def _together(pair: Pair, standings: Standings, decides: bool) -> Pair:
    """The pair with the interval that holds together with all others."""
    interval = standings.interval(pair.first, pair.second)
    holds = pair.holds
    if decides and interval.low is not None:
        holds = not interval.contains(0.0)
    p_value = standings.p_value(pair.first, pair.second)
    return replace(pair, simultaneous=interval, p_simultaneous=p_value, holds=holds)


def _entries(
    named: dict[str, StoredRun],
    observed: dict[str, float],
    resampled: dict[str, Floats],
    metric: str,
    level: float,
) -> tuple[Entry, ...]:
    sign = 1 if metric in LOWER_IS_BETTER else -1
    order = sorted(named, key=lambda name: (math.isnan(observed[name]), sign * observed[name], name))
    return tuple(
        Entry(
            name=name,
            rank=None
            if math.isnan(observed[name])
            else 1 + sum(sign * observed[other] < sign * observed[name] for other in named),
            value=None if math.isnan(observed[name]) else observed[name],
            interval=percentile_interval(resampled[name], level=level),
            reported=named[name].metrics.get(metric),
            caveats=named[name].caveats,
        )
        for name in order
    )


def _pairs(
    entries: tuple[Entry, ...],
    predictions: dict[str, Predictions],
    resampled: dict[str, Floats],
    design: SamplingDesign,
    test: str,
    alpha: float,
) -> tuple[Pair, ...]:
    """All pairs of encoders that have a value; the Holm family is the whole table.

    The best encoder is chosen by looking at the data, so comparisons with it alone would be a smaller family
    than the one it was chosen from, and would claim too much.
    """
    compared: list[tuple[str, str, PairedDifference, PairTests]] = []
    for first, second in combinations([entry for entry in entries if entry.value is not None], 2):
        assert first.value is not None
        assert second.value is not None
        difference = paired_difference(
            first.value - second.value,
            resampled[first.name] - resampled[second.name],
            design,
            level=1 - alpha,
        )
        tests = pair_tests(predictions[first.name], predictions[second.name], bootstrap=difference.p_value)
        compared.append((first.name, second.name, difference, tests))
    p_values = [tests.p_value(test) for *_, tests in compared]
    return tuple(
        Pair(
            a,
            b,
            difference.difference,
            difference.interval,
            tests,
            p,
            float(adjusted),
            bool(adjusted <= alpha),
            Interval(None, None, 1 - alpha, "max-t", reason="the values are means over episodes"),
            float("nan"),
        )
        for (a, b, difference, tests), p, adjusted in zip(compared, p_values, holm(p_values), strict=True)
    )


def _notes(
    entries: tuple[Entry, ...],
    pairs: tuple[Pair, ...],
    design: SamplingDesign,
    test: str,
    n_resamples: int,
    alpha: float,
) -> tuple[str, ...]:
    notes = []
    missing = [entry.name for entry in entries if entry.value is None]
    if missing:
        notes.append(f"the metric has no value for {', '.join(missing)}")
    if any(map(_is_mean_over_episodes, entries)):
        notes.append(
            "values are those of the stored per-image predictions (for few-shot: mean probabilities over "
            "episodes); the runs' files report means over episodes"
        )
    flat = [entry.name for entry in entries if entry.interval.has_no_width]
    if flat:
        units = "groups" if design.is_clustered else "images"
        notes.append(
            f"{', '.join(flat)}: resamples are all alike, the interval has no width. That is no certainty: "
            f"what {design.n_units} {units} do not show may still be up to "
            f"{100 * most_unseen(design.n_units, level=1 - alpha):.1f} % of {units}"
        )
    if test == "bootstrap" and pairs and smallest_p_value(n_resamples, design) * len(pairs) > alpha:
        needed = resamples_for(2 * len(pairs), "accuracy", alpha)
        if smallest_p_value(needed, design) * len(pairs) > alpha:
            notes.append(f"too few groups for {len(pairs)} corrected comparisons: no difference can hold")
        else:
            notes.append(
                f"{n_resamples} resamples are too few for {len(pairs)} corrected comparisons: "
                f"no difference can hold; use --n_bootstrap {needed}"
            )
    if test == "mcnemar" and design.is_clustered:
        notes.append(
            "McNemar's test takes images as independent, but they come in groups: prefer --test bootstrap"
        )
    if design.is_clustered and design.n_units < 20:
        notes.append(
            f"only {design.n_units} groups: intervals from so few are rough and tend to be too narrow"
        )
    return tuple(notes)
