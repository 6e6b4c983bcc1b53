"""Two agents on the same tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, by_task
from histobench.mint.results.uncertainty import gain
from histobench.statistics.resampling import PairedDifference
from histobench.statistics.tests import holm

ALL = "all"


@dataclass(frozen=True)
class AgentComparison:
    """First minus second on the tasks that both have played. Rates and the difference are shares."""

    group: str
    tasks: int
    first_rate: float
    second_rate: float
    difference: PairedDifference
    #: Tasks that only the first or only the second has solved; empty unless each task was played once.
    solved_by_one: tuple[int, ...]
    #: Holm's correction over all rows of the table; NaN before the table is whole.
    p_holm: float = float("nan")


def side_by_name(
    outcomes: Iterable[EpisodeOutcome], first: str, second: str, *, k: int
) -> tuple[list[EpisodeOutcome], list[EpisodeOutcome]]:
    sides: dict[str, list[EpisodeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.k == k:
            for name in _names(outcome):
                sides[name].append(outcome)
    for name in (first, second):
        if name not in sides:
            raise HistobenchError(f"no episodes of {name!r} with k = {k}; {did_you_mean(name, sides)}")
        kinds = sorted({outcome.feedback_type for outcome in sides[name]})
        if len(kinds) > 1:
            choices = " or ".join(f"{name}/{kind}" for kind in kinds)
            raise HistobenchError(f"{name} has {len(kinds)} kinds of feedback; write {choices}")
    return sides[first], sides[second]


def _names(outcome: EpisodeOutcome) -> list[str]:
    if outcome.feedback_model == NO_FEEDBACK:
        return [outcome.model]
    name = f"{outcome.model}+{outcome.feedback_model}"
    return [name, f"{name}/{outcome.feedback_type}"]


def compare_agents(
    first: Sequence[EpisodeOutcome], second: Sequence[EpisodeOutcome]
) -> list[AgentComparison]:
    groups: dict[str, tuple[list[EpisodeOutcome], list[EpisodeOutcome]]] = defaultdict(lambda: ([], []))
    for side, outcomes in enumerate((first, second)):
        for outcome in outcomes:
            for name in dict.fromkeys((ALL, outcome.family, outcome.task)):
                groups[name][side].append(outcome)
    compared = [_compare(name, *sides) for name, sides in groups.items()]
    rows = [comparison for comparison in compared if comparison is not None]
    corrected = holm([row.difference.p_value for row in rows])
    return [replace(row, p_holm=float(p_value)) for row, p_value in zip(rows, corrected, strict=True)]


def _compare(
    name: str, first: Sequence[EpisodeOutcome], second: Sequence[EpisodeOutcome]
) -> AgentComparison | None:
    difference = gain(first, second)
    if difference is None:
        return None
    results = [by_task(first), by_task(second)]
    shared = sorted(results[0].keys() & results[1].keys())
    tried = [[success for task in shared for success in side[task]] for side in results]
    once = all(len(side) == len(shared) for side in tried)
    pairs = list(zip(*tried, strict=True)) if once else []
    return AgentComparison(
        group=name,
        tasks=len(shared),
        first_rate=sum(tried[0]) / len(tried[0]),
        second_rate=sum(tried[1]) / len(tried[1]),
        difference=difference,
        solved_by_one=(pairs.count((True, False)), pairs.count((False, True))) if once else (),
    )
