"""Success in every one of several tries: pass^k over repeated runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from histobench.mint.results.outcome import EpisodeOutcome, by_task


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
