"""How sure a success rate is: tasks are the units, each with all its episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.intervals import Interval, percentile_interval
from histobench.core.statistics.jackknife import t_p_value, t_quantile
from histobench.core.statistics.paired import PairedDifference
from histobench.core.statistics.proportion import clustered_bounds
from histobench.core.statistics.resampling import SamplingDesign, replicates, sampling_design
from histobench.mint.results.outcome import EpisodeOutcome, by_task

RESAMPLES = 2000
LEVEL = 0.95
METHOD = "Korn-Graubard over tasks"

Floats = NDArray[np.float64]


def rate_interval(outcomes: Sequence[EpisodeOutcome], *, level: float = LEVEL) -> Interval:
    """The interval of a success rate (as a share) over tasks, within datasets.

    Repeated episodes of a task stay together: `clustered_bounds`. `benchmarks/agent_coverage.py` measures it.
    """
    played = _by_task(outcomes)
    if len(played) < 2:
        return Interval(None, None, level, METHOD, 0, "one task says nothing about others")
    solved, tries = np.array(list(played.values()), dtype=np.float64).T
    low, high = clustered_bounds(solved, tries, strata=[task for task, _ in played], level=level)
    return Interval(low, high, level, METHOD, 0)


def share_interval(shares: Floats, *, level: float = LEVEL) -> Interval:
    """The interval of the mean of one share for each task, such as pass^k."""
    if len(shares) < 2:
        return Interval(None, None, level, METHOD, 0, "one task says nothing about others")
    return Interval(*clustered_bounds(shares, np.ones(len(shares)), level=level), level, METHOD, 0)


def task_design(outcomes: Sequence[EpisodeOutcome]) -> SamplingDesign:
    """Tasks as clusters within datasets as strata: datasets are fixed, their tasks are a sample."""
    return sampling_design(
        len(outcomes),
        strata=np.array([outcome.task for outcome in outcomes]),
        clusters=np.array(["\t".join(outcome.key) for outcome in outcomes]),
    )


def gain(
    first: Sequence[EpisodeOutcome], second: Sequence[EpisodeOutcome], *, level: float = LEVEL
) -> PairedDifference | None:
    """Success of `first` minus success of `second` on the tasks that both have played; `None` without any.

    Student's t over tasks, within datasets, with two tasks added of which each agent wins one (Bonett and
    Price 2012): few tasks of which most end alike would otherwise show no spread. The interval excludes 0
    exactly where the p-value is below 1 - level.
    """
    sides = [_by_task(outcomes) for outcomes in (first, second)]
    shared = sorted(sides[0].keys() & sides[1].keys())
    n = len(shared)
    if n < 2:
        return None
    solved, played = (
        np.array([[side[task][k] for task in shared] for side in sides], dtype=np.float64) for k in (0, 1)
    )
    rates = solved.sum(axis=1) / played.sum(axis=1)
    difference = float(rates[0] - rates[1])
    # How far each task moves either rate, in tasks; with equal tries its own difference from the mean.
    moved = n * (solved - rates[:, None] * played) / played.sum(axis=1, keepdims=True)
    each = moved[0] - moved[1]
    datasets = np.unique([task for task, _ in shared], return_inverse=True)[1]
    sizes = np.bincount(datasets)
    within = each - (np.bincount(datasets, each) / sizes)[datasets]
    error = float(np.sqrt((within @ within + 2) / (n + 2) / (n + 1)))
    middle, freedom = difference * n / (n + 2), max(n - len(sizes), 1.0)
    half = t_quantile(freedom, level) * error
    interval = Interval(max(middle - half, -1.0), min(middle + half, 1.0), level, "t over tasks")
    return PairedDifference(difference, interval, float(t_p_value(middle / error, freedom)))


def _by_task(outcomes: Sequence[EpisodeOutcome]) -> dict[tuple[str, str], tuple[int, int]]:
    """Task -> how often it was solved, and played."""
    return {key: (sum(results), len(results)) for key, results in by_task(outcomes).items()}


def slope_interval(
    outcomes: Sequence[EpisodeOutcome], *, n_resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval | None:
    """The interval of the improvement rate in points per turn; `None` with fewer than two budgets.

    A resampled task brings its episodes of all budgets along. Unlike the published slope, rates are not
    rounded first.
    """
    budgets = sorted({outcome.k for outcome in outcomes})
    design = task_design(outcomes)
    if len(budgets) < 2 or design.n_units < 2:
        return None
    successes = np.array([outcome.success for outcome in outcomes], dtype=np.float64)
    of_budget = [np.array([outcome.k == k for outcome in outcomes]) for k in budgets]
    distance = np.array(budgets, dtype=np.float64) - np.mean(budgets)

    def slope(counts: NDArray[np.int32]) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):  # a budget may be absent from a resample
            rates = np.stack([_share(counts[:, mask], successes[mask]) for mask in of_budget], axis=1)
        return np.asarray(100 * (rates @ distance) / (distance @ distance), dtype=np.float64)

    return percentile_interval(replicates(slope, design, n_resamples=n_resamples, seed=seed), level=level)


def _share(counts: NDArray[np.int32], successes: Floats) -> Floats:
    return np.asarray((counts @ successes) / counts.sum(axis=1), dtype=np.float64)
