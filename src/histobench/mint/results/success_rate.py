"""Success rates over the budget k, and what they say about learning from interaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    import numpy as np
    from sklearn.linear_model import LinearRegression

    # Published slopes lie on rounding ties (5.965); the same solver falls on the same side of them.
    budgets = np.array([[k] for k in rates], dtype=float)
    values = np.array(list(rates.values()))
    line = LinearRegression().fit(budgets, values)
    return Trend(round(float(line.coef_[0]), DECIMALS), round(float(line.score(budgets, values)), DECIMALS))
