"""Success rates, their intervals and reliability; tasks are the units."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import NDArray

from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, by_task
from histobench.statistics.intervals import Interval, exact_bounds
from histobench.statistics.jackknife import bounds, proportion, t_p_value, t_quantile
from histobench.statistics.resampling import PairedDifference

LEVEL = 0.95
EXACT, METHOD = "Clopper-Pearson", "wilson-t over tasks"
_ONE_TASK = Interval(None, None, LEVEL, METHOD, 0, "one task says nothing about others")

Floats = NDArray[np.float64]


def rate_interval(outcomes: Sequence[EpisodeOutcome]) -> Interval:
    played = _by_task(outcomes)
    solved, tries = ([counts[place] for counts in played.values()] for place in (0, 1))
    return tasks_interval(solved, tries, datasets=[task for task, _ in played])


def tasks_interval(
    solved: Sequence[float], tries: Sequence[float], *, datasets: Sequence[str] | None = None
) -> Interval:
    """The interval of the share of successes of tasks [n]: exact where every task was tried once."""
    if len(solved) < 2:
        return _ONE_TASK
    if set(tries) == {1} and all(value == round(value) for value in solved):
        return Interval(*exact_bounds(round(sum(solved)), len(solved), level=LEVEL), LEVEL, EXACT)
    (low,), (high,) = bounds(proportion(solved, tries, strata=datasets), level=LEVEL)
    return Interval(float(low), float(high), LEVEL, METHOD)


def gain(first: Sequence[EpisodeOutcome], second: Sequence[EpisodeOutcome]) -> PairedDifference | None:
    """Success of `first` minus success of `second` on the tasks that both have played; `None` without any.

    Student's t over tasks, within datasets, with two tasks added of which each agent wins one (Bonett and
    Price 2012): few tasks of which most end alike would otherwise show no spread. The interval excludes 0
    exactly where the p-value is below 1 - LEVEL.
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
    interval, p_value = _t_over_tasks(difference, moved[0] - moved[1], shared, most=1.0)
    return PairedDifference(difference, interval, p_value)


def _t_over_tasks(
    value: float, each: Floats, tasks: Sequence[tuple[str, str]], *, most: float
) -> tuple[Interval, float]:
    """Interval and p-value of a mean over tasks, whose part of it is `each` [n], within datasets."""
    n = len(each)
    datasets = np.unique([task for task, _ in tasks], return_inverse=True)[1]
    sizes = np.bincount(datasets)
    within = each - (np.bincount(datasets, each) / sizes)[datasets]
    error = float(np.sqrt((within @ within + 2 * most**2) / (n + 2) / (n + 1)))
    middle, freedom = value * n / (n + 2), max(n - len(sizes), 1.0)
    half = float(t_quantile(freedom, LEVEL)) * error
    interval = Interval(max(middle - half, -most), min(middle + half, most), LEVEL, "t over tasks")
    return interval, float(t_p_value(middle / error, freedom))


def _by_task(outcomes: Sequence[EpisodeOutcome]) -> dict[tuple[str, str], tuple[int, int]]:
    return {key: (sum(results), len(results)) for key, results in by_task(outcomes).items()}


def slope_interval(outcomes: Sequence[EpisodeOutcome]) -> Interval | None:
    """The interval of the improvement rate in points per turn; `None` with fewer than two budgets.

    Student's t over tasks, each with its episodes of all budgets, as in `gain`: with two budgets that are one
    turn apart it is the interval of the gain. Unlike the published slope, rates are not rounded first.
    """
    budgets = sorted({outcome.k for outcome in outcomes})
    played = [_by_task([outcome for outcome in outcomes if outcome.k == k]) for k in budgets]
    tasks = sorted(set().union(*played))
    if len(budgets) < 2 or len(tasks) < 2:
        return None
    distance = np.array(budgets, dtype=np.float64) - np.mean(budgets)
    weight = 100 * distance / (distance @ distance)
    solved, tries = (
        np.array([[of_k.get(task, (0, 0))[part] for task in tasks] for of_k in played], dtype=np.float64)
        for part in (0, 1)
    )
    rates = solved.sum(axis=1) / tries.sum(axis=1)
    moved = len(tasks) * (solved - rates[:, None] * tries) / tries.sum(axis=1, keepdims=True)
    steepest = float(weight[weight > 0].sum())
    return _t_over_tasks(float(weight @ rates), weight @ moved, tasks, most=steepest)[0]


DECIMALS = 2


@dataclass(frozen=True)
class Trend:
    slope: float
    r2: float


def success_rate(outcomes: Iterable[EpisodeOutcome]) -> float | None:
    results = [outcome.success for outcome in outcomes]
    return round(100 * sum(results) / len(results), DECIMALS) if results else None


def rate_by_budget(outcomes: Iterable[EpisodeOutcome]) -> dict[int, float]:
    groups: dict[int, list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.k].append(outcome)
    return {k: rate for k in sorted(groups) if (rate := success_rate(groups[k])) is not None}


def trend(rates: Mapping[int, float]) -> Trend | None:
    if len(rates) < 2:
        return None
    slope = _slope([float(k) for k in rates], list(rates.values()))
    mean_k, mean = sum(rates) / len(rates), sum(rates.values()) / len(rates)
    left = sum((rate - mean - slope * (k - mean_k)) ** 2 for k, rate in rates.items())
    total = sum((rate - mean) ** 2 for rate in rates.values())
    return Trend(round(slope, DECIMALS), round(1 - left / total if total else 1.0, DECIMALS))


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope by one Householder reflection with fused sums.

    Published slopes lie on rounding ties (5.965 became 5.97, 5.665 became 5.66): this is the arithmetic of
    the published solver, written out so that every processor falls on its side of them.
    """
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    x, y = [value - mean_x for value in x], [value - mean_y for value in y]
    rest = math.sqrt(sum(value * value for value in x[1:]))
    beta = math.copysign(math.sqrt(x[0] * x[0] + rest * rest), -x[0])
    tau = (beta - x[0]) / beta
    mirror = [1.0, *(value / (x[0] - beta) for value in x[1:])]
    product = 0.0
    for one, other in zip(mirror, y, strict=True):
        product = float(Fraction(one) * Fraction(other) + Fraction(product))  # a fused multiply-add
    return (y[0] - tau * product) * (1.0 / beta)


def tries_per_task(outcomes: Iterable[EpisodeOutcome]) -> int:
    return min(map(len, by_task(outcomes).values()), default=0)


def pass_hat(outcomes: Sequence[EpisodeOutcome], tries: int) -> float | None:
    """The share of tasks solved in all of `tries` tries, without bias from the choice of the tries."""
    shares = _shares_in_all(outcomes, tries)
    return None if shares is None else sum(shares) / len(shares)


def pass_hat_interval(outcomes: Sequence[EpisodeOutcome], tries: int) -> Interval | None:
    shares = _shares_in_all(outcomes, tries)
    return None if shares is None else tasks_interval(shares, [1] * len(shares))


def _shares_in_all(outcomes: Sequence[EpisodeOutcome], tries: int) -> list[float] | None:
    solved = by_task(outcomes)
    if not solved or min(map(len, solved.values())) < tries:
        return None
    return [comb(sum(results), tries) / comb(len(results), tries) for results in solved.values()]


def pass_at(outcomes: Sequence[EpisodeOutcome], tries: int) -> float | None:
    """The share of tasks solved in at least one of `tries` tries, without bias from their choice."""
    failed = [EpisodeOutcome(**{**vars(outcome), "success": not outcome.success}) for outcome in outcomes]
    never = pass_hat(failed, tries)
    return None if never is None else 1 - never


@dataclass(frozen=True)
class TriesRow:
    model: str
    k: int
    tasks: int
    pass_at: tuple[float, ...]
    pass_hat: tuple[float, ...]
    interval: Interval | None = None  # of the last pass^k, over tasks


def tries_rows(outcomes: Iterable[EpisodeOutcome]) -> list[TriesRow]:
    groups: dict[tuple[str, int], list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.feedback_model == NO_FEEDBACK:
            groups[outcome.model, outcome.k].append(outcome)
    rows = []
    for (model, k), played in sorted(groups.items()):
        numbers = range(1, tries_per_task(played) + 1)
        if len(numbers) > 1:
            at = tuple(pass_at(played, number) or 0.0 for number in numbers)
            hat = tuple(pass_hat(played, number) or 0.0 for number in numbers)
            interval = pass_hat_interval(played, numbers[-1])
            rows.append(TriesRow(model, k, len(by_task(played)), at, hat, interval))
    return rows
