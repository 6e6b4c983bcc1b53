"""Success of every model on every family or dataset, with intervals and what the agents did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from histobench.core.statistics.intervals import Interval
from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome, mean_tokens
from histobench.mint.results.reliability import pass_hat, pass_hat_interval, tries_per_task
from histobench.mint.results.success_rate import rate_by_budget
from histobench.mint.results.uncertainty import rate_interval, slope_interval

ALL = "all"
GROUPINGS = ("all", "family", "dataset")


@dataclass(frozen=True)
class GroupRow:
    """One model without feedback on some tasks; the interval and the means are of the largest budget."""

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
    """A row for each model and group, models in order of their names."""
    groups: dict[tuple[str, str], list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.feedback_model == NO_FEEDBACK:
            groups[outcome.model, _group(outcome, by)].append(outcome)
    return [_row(model, group, groups[model, group]) for model, group in sorted(groups)]


def _group(outcome: EpisodeOutcome, by: str) -> str:
    if by == "dataset":
        return outcome.task
    return outcome.family if by == "family" else ALL


def _row(model: str, group: str, outcomes: Sequence[EpisodeOutcome]) -> GroupRow:
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
