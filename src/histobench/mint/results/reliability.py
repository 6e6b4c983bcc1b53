"""Success over several tries of repeated runs: in every one (pass^k), in at least one (pass@k)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from histobench.core.statistics.intervals import Interval
from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome, by_task
from histobench.mint.results.uncertainty import share_interval


def tries_per_task(outcomes: Iterable[EpisodeOutcome]) -> int:
    """How often every task was played, at least."""
    return min(map(len, by_task(outcomes).values()), default=0)


def pass_hat(outcomes: Sequence[EpisodeOutcome], tries: int) -> float | None:
    """The share of tasks solved in all of `tries` tries, without bias from the choice of the tries.

    A task that was solved c times in n tries counts C(c, tries) / C(n, tries). `None` where some task has
    fewer tries. The outcomes must be of one model and one setting.

    >>> def played(task, success): return EpisodeOutcome("m", "None", "None", 5, "gsm8k", task, success)
    >>> pass_hat([played("1", True), played("1", True), played("2", True), played("2", False)], 2)
    0.5
    """
    solved = by_task(outcomes)
    if not solved or min(map(len, solved.values())) < tries:
        return None
    shares = [comb(sum(results), tries) / comb(len(results), tries) for results in solved.values()]
    return sum(shares) / len(shares)


def pass_hat_interval(outcomes: Sequence[EpisodeOutcome], tries: int) -> Interval | None:
    """The interval of `pass_hat` over tasks; `None` where some task has fewer tries."""
    solved = by_task(outcomes)
    if not solved or min(map(len, solved.values())) < tries:
        return None
    shares = [comb(sum(results), tries) / comb(len(results), tries) for results in solved.values()]
    return share_interval(np.array(shares, dtype=np.float64))


def pass_at(outcomes: Sequence[EpisodeOutcome], tries: int) -> float | None:
    """The share of tasks solved in at least one of `tries` tries, without bias from the choice of the tries.

    A task that was solved c times in n tries counts 1 - C(n - c, tries) / C(n, tries). `None` where some task
    has fewer tries. The outcomes must be of one model and one setting.

    >>> def played(task, success): return EpisodeOutcome("m", "None", "None", 5, "gsm8k", task, success)
    >>> pass_at([played("1", True), played("1", True), played("2", True), played("2", False)], 1)
    0.75
    """
    failed = [EpisodeOutcome(**{**vars(outcome), "success": not outcome.success}) for outcome in outcomes]
    never = pass_hat(failed, tries)
    return None if never is None else 1 - never


@dataclass(frozen=True)
class TriesRow:
    """One model and setting, played several times: both measures for every number of tries, as shares."""

    model: str
    k: int
    tasks: int
    pass_at: tuple[float, ...]
    pass_hat: tuple[float, ...]
    interval: Interval | None = None  # of the last pass^k, over tasks


def tries_rows(outcomes: Iterable[EpisodeOutcome]) -> list[TriesRow]:
    """A row for each model and budget without feedback whose tasks were all played more than once."""
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
