"""The tables of finished runs: leaderboard, groups, feedback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, mean_tokens
from histobench.mint.results.uncertainty import (
    Trend,
    pass_hat,
    pass_hat_interval,
    rate_by_budget,
    rate_interval,
    slope_interval,
    success_rate,
    trend,
    tries_per_task,
)
from histobench.statistics.intervals import Interval

ALL = "all"


@dataclass(frozen=True)
class GroupRow:
    model: str
    group: str
    rates: dict[int, float]
    k: int
    episodes: int
    interval: Interval
    slope: Interval | None  # points per turn; only with several budgets
    actions: float
    invalid_rate: float  # of the actions
    tokens: float | None  # of an episode
    tries: int
    pass_hat: float | None  # all tries of a task succeed; only with repeated runs
    pass_hat_interval: Interval | None = None  # over tasks


def group_rows(outcomes: Iterable[EpisodeOutcome], by: str = "all") -> list[GroupRow]:
    groups: dict[tuple[str, str], list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.feedback_model == NO_FEEDBACK:
            group = {"dataset": outcome.task, "family": outcome.family}.get(by, ALL)
            groups[outcome.model, group].append(outcome)
    return [_group_row(model, group, groups[model, group]) for model, group in sorted(groups)]


def _group_row(model: str, group: str, outcomes: Sequence[EpisodeOutcome]) -> GroupRow:
    k = max(outcome.k for outcome in outcomes)
    full = [outcome for outcome in outcomes if outcome.k == k]
    actions = sum(outcome.proposals + outcome.tool_calls + outcome.invalid for outcome in full)
    tries = tries_per_task(full)
    return GroupRow(
        model=model,
        group=group,
        rates=rate_by_budget(outcomes),
        k=k,
        episodes=len(full),
        interval=rate_interval(full),
        slope=slope_interval(outcomes),
        actions=actions / len(full),
        invalid_rate=sum(outcome.invalid for outcome in full) / actions if actions else 0.0,
        tokens=mean_tokens(full),
        tries=tries,
        pass_hat=pass_hat(full, tries) if tries > 1 else None,
        pass_hat_interval=pass_hat_interval(full, tries) if tries > 1 else None,
    )


#: The feedback that the published headline uses.
FEEDBACK_MODEL = "gpt-4-0613"
FEEDBACK_TYPE = "no_GT-textual"
TREND_BUDGETS = (1, 2, 3, 4, 5)
FULL_BUDGET = 5
AVERAGE = "avg_micro"
_DISPLAY = {"agentlm-70b-llama-2": "AgentLM-70b", "lemur-70b-chat-v1": "Lemur-70b-chat-v1"}


@dataclass(frozen=True)
class LeaderboardRow:
    """One model's line of the table. Rates are percentages with two decimals."""

    model: str
    rates: dict[int, float]
    trend: Trend | None
    by_family: dict[str, float]
    with_feedback: dict[str, float]
    episodes: int

    @property
    def feedback_gain(self) -> float | None:
        full = self.rates.get(FULL_BUDGET)
        if full is None or AVERAGE not in self.with_feedback:
            return None
        return self.with_feedback[AVERAGE] - full

    def as_published(self) -> dict[str, Any]:
        gain = self.feedback_gain
        published: dict[str, Any] = {
            "SR": {str(k): rate for k, rate in self.rates.items() if k in TREND_BUDGETS},
            "SR5_feedback": None if gain is None else float(f"{self.with_feedback[AVERAGE]:.1f}"),
            "delta_feedback": None if gain is None else float(f"{gain:.1f}"),
            "published_name": display_name(self.model),
            "r2": self.trend.r2 if self.trend else None,
            "slope": self.trend.slope if self.trend else None,
        }
        if gain is not None:
            published["SR5_by_family"] = self.by_family
            published["SR5_by_family_feedback"] = self.with_feedback
        return published


def leaderboard(
    outcomes: Iterable[EpisodeOutcome],
    *,
    feedback_model: str = FEEDBACK_MODEL,
    feedback_type: str = FEEDBACK_TYPE,
) -> list[LeaderboardRow]:
    plain: dict[str, list[EpisodeOutcome]] = defaultdict(list)
    helped: dict[str, list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.feedback_model == NO_FEEDBACK:
            plain[outcome.model].append(outcome)
        elif (outcome.feedback_model, outcome.feedback_type) == (feedback_model, feedback_type):
            helped[outcome.model].append(outcome)
    return [_standing(model, plain[model], helped[model]) for model in sorted({*plain, *helped})]


def display_name(model: str) -> str:
    return _DISPLAY.get(model, model.removesuffix("-hf"))


def family_rates(outcomes: Iterable[EpisodeOutcome]) -> dict[str, float]:
    groups: dict[str, list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[AVERAGE].append(outcome)
        groups[outcome.family].append(outcome)
    return {name: rate for name in sorted(groups) if (rate := success_rate(groups[name])) is not None}


def _standing(model: str, plain: list[EpisodeOutcome], helped: list[EpisodeOutcome]) -> LeaderboardRow:
    rates = rate_by_budget(plain)
    return LeaderboardRow(
        model=model,
        rates=rates,
        trend=trend({k: rate for k, rate in rates.items() if k in TREND_BUDGETS}),
        by_family=family_rates(outcome for outcome in plain if outcome.k == FULL_BUDGET),
        with_feedback=family_rates(outcome for outcome in helped if outcome.k == FULL_BUDGET),
        episodes=len(plain) + len(helped),
    )
