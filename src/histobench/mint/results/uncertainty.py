"""How sure a success rate is: tasks are drawn anew, each with all its episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.intervals import Interval, percentile_interval
from histobench.core.statistics.paired import PairedDifference, paired_bootstrap
from histobench.core.statistics.resampling import SamplingDesign, replicates, sampling_design
from histobench.mint.results.outcome import EpisodeOutcome, by_task

RESAMPLES = 2000
LEVEL = 0.95

Floats = NDArray[np.float64]


def rate_interval(
    outcomes: Sequence[EpisodeOutcome], *, n_resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """The interval of a success rate (as a share). Repeated episodes of a task stay together.

    Rates near 0 or 1 have no resample that differs; there the interval of Wilson is given instead.
    """
    successes = np.array([outcome.success for outcome in outcomes], dtype=np.float64)
    design = task_design(outcomes)
    if design.n_units < 2:
        return Interval(None, None, level, "percentile", 0, "one task says nothing about others")
    if successes.min() == successes.max():
        return _wilson(float(successes.mean()), design.n_units, level)
    resampled = replicates(
        lambda counts: _share(counts, successes), design, n_resamples=n_resamples, seed=seed
    )
    return percentile_interval(resampled, level=level)


def task_design(outcomes: Sequence[EpisodeOutcome]) -> SamplingDesign:
    """Tasks as clusters within datasets as strata: datasets are fixed, their tasks are a sample."""
    return sampling_design(
        len(outcomes),
        strata=np.array([outcome.task for outcome in outcomes]),
        clusters=np.array(["\t".join(outcome.key) for outcome in outcomes]),
    )


def gain(
    first: Sequence[EpisodeOutcome],
    second: Sequence[EpisodeOutcome],
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> PairedDifference | None:
    """Success of `first` minus success of `second` on the tasks that both have played; `None` without any.

    Both rates are taken on the same resampled tasks, so that hard tasks are hard for both.
    """
    shared = by_task(first).keys() & by_task(second).keys()
    both = [[outcome for outcome in outcomes if outcome.key in shared] for outcomes in (first, second)]
    if len(shared) < 2:
        return None
    together = [*both[0], *both[1]]
    successes = np.array([outcome.success for outcome in together], dtype=np.float64)
    is_first = np.arange(len(together)) < len(both[0])
    return paired_bootstrap(
        lambda counts: _share(counts[:, is_first], successes[is_first]),
        lambda counts: _share(counts[:, ~is_first], successes[~is_first]),
        task_design(together),
        n_resamples=n_resamples,
        seed=seed,
        level=level,
    )


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


def _wilson(rate: float, n: int, level: float) -> Interval:
    from scipy import special

    z = float(special.ndtri(0.5 + level / 2))
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5
    return Interval(max(0.0, centre - half), min(1.0, centre + half), level, "wilson", 0)
