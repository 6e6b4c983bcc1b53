"""Requests and tokens per minute: the limits that a user sets with `--rpm` and `--tpm`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

MINUTE = 60.0


class RateLimiter:
    """Says how long a request has to wait. Used by one event loop, so that nothing has to be locked.

    Each limit is a bucket that fills evenly and holds one minute's worth. A request larger than it runs into
    debt.
    """

    def __init__(
        self, limits: Mapping[str, float | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._at = clock, clock()
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        self._levels = dict(self._limits)

    def wait(self, tokens: float) -> float:
        """Seconds until a request of about so many tokens may be sent; 0 takes its share at once."""
        before, self._at = self._at, self._clock()
        costs = {"requests": 1.0, "tokens": float(tokens)}
        longest = 0.0
        for name, limit in self._limits.items():
            self._levels[name] = min(limit, self._levels[name] + (self._at - before) * limit / MINUTE)
            longest = max(longest, (min(costs[name], limit) - self._levels[name]) * MINUTE / limit)
        if not longest:
            self._levels = {name: level - costs[name] for name, level in self._levels.items()}
        return longest

    def settle(self, estimated: float, used: float) -> None:
        if "tokens" in self._levels:
            self._levels["tokens"] -= used - estimated
