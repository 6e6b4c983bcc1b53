"""What a run has spent, and the limit it must not pass."""

from __future__ import annotations

import threading

from histobench.mint.agents.completion import Usage


class CostLimitError(Exception):
    """The limit is reached: nothing more is asked."""


class Ledger:
    """Tokens and dollars of all answers that were paid for; safe between threads.

    A request whose answer is under way is not yet booked, so that a run can pass the limit by as much as its
    concurrent requests cost.
    """

    def __init__(self, *, max_cost: float | None = None, spent: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._max_cost = max_cost
        self._spent = spent
        self._usage = Usage()
        self._unpriced = 0
        self._calls = 0

    @property
    def spent(self) -> float:
        """Dollars, as far as prices are known."""
        return self._spent

    @property
    def unpriced_calls(self) -> int:
        """Answers whose cost is unknown."""
        return self._unpriced

    @property
    def calls(self) -> int:
        """Answers that were not read from the cache."""
        return self._calls

    @property
    def usage(self) -> Usage:
        """Tokens of these answers."""
        return self._usage

    def check(self) -> None:
        """Raise if the limit is reached, or if nobody can tell."""
        if self._max_cost is None:
            return
        if self._unpriced:
            raise CostLimitError(
                "the provider does not say how many tokens an answer took: --max-cost cannot be kept; "
                "without it the run goes on"
            )
        if self._spent >= self._max_cost:
            raise CostLimitError(
                f"${self._spent:.4f} of at most ${self._max_cost:.4f} spent; "
                "a higher --max-cost goes on from here"
            )

    def book(self, usage: Usage, cost: float | None) -> None:
        """Enter one answer."""
        with self._lock:
            self._calls += 1
            self._usage += usage
            if cost is None:
                self._unpriced += 1
            else:
                self._spent += cost
