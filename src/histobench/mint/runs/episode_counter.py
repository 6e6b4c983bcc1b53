"""How a run is going."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Time left is judged by so many of the last episodes.
WINDOW = 200


@dataclass(frozen=True)
class Standing:
    """One moment of a run. `seconds_left` is unknown until an episode has finished."""

    total: int
    done: int
    earlier: int  # of these, finished by an earlier run
    successes: int
    failures: int
    tokens: int
    spent: float
    unpriced: int
    seconds: float
    seconds_left: float | None

    @property
    def success_rate(self) -> float | None:
        """Percentage of the finished episodes."""
        return 100 * self.successes / self.done if self.done else None


class EpisodeCounter:
    """Counts episodes as they finish; safe between threads."""

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()
        self._total = total
        self._done = self._earlier = self._successes = self._failures = self._tokens = 0
        self._recent: deque[float] = deque([self._start], maxlen=WINDOW + 1)

    def add_earlier(self, successes: int, failures: int) -> None:
        """Episodes that were on disk already."""
        with self._lock:
            self._earlier += successes + failures
            self._done += successes + failures
            self._successes += successes

    def add(self, *, success: bool, tokens: int) -> None:
        with self._lock:
            self._done += 1
            self._successes += success
            self._tokens += tokens
            self._recent.append(self._clock())

    def add_failure(self) -> None:
        """An episode that the provider or the machinery kept from finishing."""
        with self._lock:
            self._failures += 1

    def standing(self, *, spent: float = 0.0, unpriced: int = 0) -> Standing:
        """The numbers now."""
        with self._lock:
            left = self._total - self._done - self._failures
            finished = len(self._recent) - 1
            pace = (self._recent[-1] - self._recent[0]) / finished if finished else None
            return Standing(
                total=self._total,
                done=self._done,
                earlier=self._earlier,
                successes=self._successes,
                failures=self._failures,
                tokens=self._tokens,
                spent=spent,
                unpriced=unpriced,
                seconds=self._clock() - self._start,
                seconds_left=None if pace is None else pace * left,
            )
