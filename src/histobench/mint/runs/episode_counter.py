"""How a run is going."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

#: Time left is judged by so many of the last episodes.
WINDOW = 200


@dataclass(frozen=True)
class Standing:
    """One moment of a run. `seconds_left` is unknown until an episode has finished."""

    total: int
    done: int = 0
    earlier: int = 0  # of these, finished by an earlier run
    successes: int = 0
    failures: int = 0
    tokens: int = 0
    spent: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None

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
        self._now = Standing(total)
        self._recent: deque[float] = deque([self._start], maxlen=WINDOW + 1)

    def add_earlier(self, successes: int, failures: int) -> None:
        """Episodes that were on disk already."""
        self._count(earlier=successes + failures, done=successes + failures, successes=successes)

    def add(self, *, success: bool, tokens: int) -> None:
        self._count(done=1, successes=success, tokens=tokens)
        with self._lock:
            self._recent.append(self._clock())

    def add_failure(self) -> None:
        """An episode that the provider or the machinery kept from finishing."""
        self._count(failures=1)

    def standing(self, *, spent: float = 0.0, unpriced: int = 0) -> Standing:
        """The numbers now."""
        with self._lock:
            now, recent = self._now, list(self._recent)
        pace = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else None
        return replace(
            now,
            spent=spent,
            unpriced=unpriced,
            seconds=self._clock() - self._start,
            seconds_left=None if pace is None else pace * (now.total - now.done - now.failures),
        )

    def _count(self, **more: int) -> None:
        with self._lock:
            self._now = replace(
                self._now, **{name: getattr(self._now, name) + number for name, number in more.items()}
            )
