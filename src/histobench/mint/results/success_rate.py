"""Success rates over the budget k, and what they say about learning from interaction."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from histobench.mint.results.outcome import EpisodeOutcome

DECIMALS = 2


@dataclass(frozen=True)
class Trend:
    """A straight line through success rates: points of success per extra turn, and how well it fits."""

    slope: float
    r2: float


def success_rate(outcomes: Iterable[EpisodeOutcome]) -> float | None:
    """Percentage of successes with two decimals, every episode weighing the same; `None` without episodes."""
    results = [outcome.success for outcome in outcomes]
    return round(100 * sum(results) / len(results), DECIMALS) if results else None


def rate_by_budget(outcomes: Iterable[EpisodeOutcome]) -> dict[int, float]:
    """k -> success rate; each k is a run of its own."""
    groups: dict[int, list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.k].append(outcome)
    return {k: rate for k in sorted(groups) if (rate := success_rate(groups[k])) is not None}


def trend(rates: Mapping[int, float]) -> Trend | None:
    """The least-squares line through the (rounded) rates; `None` with fewer than two budgets."""
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
