"""Requests and tokens per minute: limits that a provider states in its headers, and limits of the user."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Mapping

from histobench.core.http import server_time

#: What a server counts -> how the headers of OpenAI-compatible servers and of Anthropic name it.
_HEADERS = {
    "requests": (
        ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ),
    "tokens": (
        ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
        ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MINUTE = 60.0
#: After so many seconds the provider is asked again, whatever it said.
_LONGEST_WAIT = 600.0


class RateLimiter:
    """Says how long a request has to wait. Used by one event loop, so that nothing has to be locked.

    `limits` are the `requests` and `tokens` that may be sent in a minute; None is no limit.
    """

    def __init__(
        self, limits: Mapping[str, float | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        now = clock()
        self._buckets = {name: _Bucket(limit, now) for name, limit in limits.items() if limit is not None}
        self._server: dict[str, tuple[float, float]] = {}  # what is left, and until when that holds

    def wait(self, tokens: float) -> float:
        """Seconds until a request of about so many tokens may be sent; 0 takes its share at once."""
        now = self._clock()
        costs = {"requests": 1.0, "tokens": float(tokens)}
        waits = [bucket.wait(costs[name], now) for name, bucket in self._buckets.items()]
        for name, (left, until) in self._server.items():
            if until > now and left < min(costs[name], 1.0):
                waits.append(until - now)
        longest = max(waits, default=0.0)
        if longest > 0:
            return longest
        for name, bucket in self._buckets.items():
            bucket.take(costs[name])
        self._server = {name: (left - costs[name], until) for name, (left, until) in self._server.items()}
        return 0.0

    def settle(self, estimated: float, used: float) -> None:
        """Correct the estimate of a request by what it took."""
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(used - estimated)

    def hear(self, headers: Mapping[str, str]) -> None:
        """Note what the provider says is left; what cannot be read is passed over."""
        now = self._clock()
        for name, families in _HEADERS.items():
            for remaining, reset in families:
                try:
                    left = float(headers[remaining])
                    seconds = seconds_until(headers[reset], now=server_time(headers))
                except (KeyError, ValueError):
                    continue
                self._server[name] = (left, now + min(seconds, _LONGEST_WAIT))


class _Bucket:
    """Fills evenly, holds one minute's worth; may run into debt for one request larger than it."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._capacity = per_minute
        self._level = per_minute
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        self._level = min(self._capacity, self._level + (now - self._at) * self._capacity / MINUTE)
        self._at = now
        missing = min(amount, self._capacity) - self._level
        return max(0.0, missing * MINUTE / self._capacity)

    def take(self, amount: float) -> None:
        self._level -= amount


def seconds_until(text: str, *, now: float | None = None) -> float:
    """Seconds until a moment that a header names: a duration, a number of seconds, or a date.

    >>> seconds_until("6m0s"), seconds_until("12ms"), seconds_until("1.5")
    (360.0, 0.012, 1.5)
    >>> seconds_until("2026-11-15T12:00:10Z", now=1794744000.0)
    10.0
    """
    text = text.strip()
    if (parts := _DURATION.findall(text)) and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return max(0.0, float(text))
    except ValueError:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        return max(0.0, moment - (time.time() if now is None else now))
