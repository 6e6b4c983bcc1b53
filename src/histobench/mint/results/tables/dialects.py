"""The text dialect beside native calls: what a format costs, told apart from what a model can do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from histobench.core.statistics.paired import PairedDifference
from histobench.mint.results.outcome import EpisodeOutcome, mean_tokens
from histobench.mint.results.uncertainty import gain

NATIVE = "+native"


@dataclass(frozen=True)
class DialectSide:
    """One dialect on the tasks that were played in both. Rates are shares."""

    success: float
    invalid_rate: float  # of the actions
    tokens: float | None  # of an episode


@dataclass(frozen=True)
class DialectRow:
    """A model under one setting: native minus text, paired by task."""

    model: str
    feedback: str
    k: int
    tasks: int
    text: DialectSide
    native: DialectSide
    difference: PairedDifference | None


def dialect_rows(outcomes: Iterable[EpisodeOutcome]) -> list[DialectRow]:
    """A row for each model and setting that was played in both dialects, over the tasks of both."""
    sides: dict[tuple[str, str, int], tuple[list[EpisodeOutcome], list[EpisodeOutcome]]] = defaultdict(
        lambda: ([], [])
    )
    for outcome in outcomes:
        model, native = outcome.model.removesuffix(NATIVE), outcome.model.endswith(NATIVE)
        feedback = f"{outcome.feedback_model} {outcome.feedback_type}"
        sides[model, feedback, outcome.k][native].append(outcome)
    return [
        row for key, (text, native) in sorted(sides.items()) if (row := _row(key, text, native)) is not None
    ]


def _row(
    key: tuple[str, str, int], text: Sequence[EpisodeOutcome], native: Sequence[EpisodeOutcome]
) -> DialectRow | None:
    shared = {outcome.key for outcome in text} & {outcome.key for outcome in native}
    if not shared:
        return None
    both = [[outcome for outcome in side if outcome.key in shared] for side in (text, native)]
    return DialectRow(*key, len(shared), _side(both[0]), _side(both[1]), gain(both[1], both[0]))


def _side(outcomes: Sequence[EpisodeOutcome]) -> DialectSide:
    actions = sum(outcome.proposals + outcome.tool_calls + outcome.invalid for outcome in outcomes)
    return DialectSide(
        success=sum(outcome.success for outcome in outcomes) / len(outcomes),
        invalid_rate=sum(outcome.invalid for outcome in outcomes) / actions if actions else 0.0,
        tokens=mean_tokens(outcomes),
    )
