"""What each expert's feedback is worth to each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from histobench.core.statistics.paired import PairedDifference
from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome
from histobench.mint.results.success_rate import success_rate
from histobench.mint.results.uncertainty import gain


@dataclass(frozen=True)
class FeedbackRow:
    """Success with an expert, and the paired gain over the same tasks without one (`None` if never run).

    `leaks` is the share of the episodes in which the expert gave the answer away, of those where that can be
    judged.
    """

    model: str
    expert: str
    kind: str
    k: int
    episodes: int
    rate: float
    gain: PairedDifference | None
    leaks: float | None


def feedback_rows(outcomes: Iterable[EpisodeOutcome]) -> list[FeedbackRow]:
    """A row for each model, expert, kind of feedback and budget."""
    plain: dict[tuple[str, int], list[EpisodeOutcome]] = defaultdict(list)
    helped: dict[tuple[str, str, str, int], list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.feedback_model == NO_FEEDBACK:
            plain[outcome.model, outcome.k].append(outcome)
        else:
            key = (outcome.model, outcome.feedback_model, outcome.feedback_type, outcome.k)
            helped[key].append(outcome)
    return [
        FeedbackRow(
            model,
            expert,
            kind,
            k,
            len(played),
            success_rate(played) or 0.0,
            gain(played, plain[model, k]),
            _leaks(played),
        )
        for (model, expert, kind, k), played in sorted(helped.items())
    ]


def _leaks(outcomes: list[EpisodeOutcome]) -> float | None:
    judged = [outcome.leaked for outcome in outcomes if outcome.leaked is not None]
    return sum(judged) / len(judged) if judged else None
