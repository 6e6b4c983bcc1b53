"""Limits of a run: cost, request rate, retries and the choice of a server."""

from __future__ import annotations

import datetime
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from histobench.core.address import without_credentials
from histobench.core.errors import HistobenchError
from histobench.core.files import HAND_WRITTEN, read_plain_text
from histobench.core.http import server_time
from histobench.core.plain_data import read_yaml
from histobench.mint.agents.completion import Usage
from histobench.mint.agents.providers.provider import Capabilities, ProviderAPI

TABLE = Path(__file__).parent / "prices.yaml"
#: Seconds to wait for what other processes hold back; those of a killed one stay held back.
PATIENCE = 120.0
_PRICES = ("read", "written", "cached", "cache_write", "reasoning")


class CostLimitError(Exception):
    """The limit is reached: nothing more is asked."""


class CostTracker:
    """Tokens and dollars of all answers that were paid for; safe between threads.

    What a question may cost at most is held back while it is under way (`reserved`), so that questions at the
    same time cannot pass the limit together. `spent` is what was spent before; `others` says what other
    processes of the run have spent and hold back by now, and `keep` is told the same of this one.
    """

    def __init__(
        self,
        *,
        max_cost: float | None = None,
        spent: float = 0.0,
        others: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        keep: Callable[[float, float], None] = lambda dollars, held: None,
    ) -> None:
        self._lock = threading.Condition()
        self._held = 0.0
        self._max_cost = max_cost
        self._before = spent
        self._others = others
        self._keep = keep
        self.spent = spent  # dollars, as far as prices are known
        self.unpriced_calls = 0
        self.calls = 0  # answers that were not read from the cache
        self.usage = Usage()

    @contextmanager
    def reserved(self, worst: float | None, *, wait: bool = True) -> Iterator[None]:
        """Hold back what a question may cost at most while it is under way.

        Waits (unless told not to) while other questions hold back what is left; raises `CostLimitError` where
        the limit would be passed even if those cost nothing.
        """
        held = worst or 0.0
        if self._max_cost is not None:
            with self._lock:
                self._hold(held, self._max_cost, PATIENCE if wait else 0.0)
        try:
            yield
        finally:
            if self._max_cost is not None:
                with self._lock:
                    self._change(-held)
                    self._lock.notify_all()

    def has_room(self) -> bool:
        """Whether what was spent and is held back is within the limit."""
        if self._max_cost is None:
            return True
        return self.spent + self._held + sum(self._others()) <= self._max_cost

    def book(self, usage: Usage, cost: float | None) -> None:
        """Enter one answer."""
        with self._lock:
            self.calls += 1
            self.usage += usage
            if cost is None:
                self.unpriced_calls += 1
            else:
                self.spent += cost
                self._keep(self.spent - self._before, self._held)

    def _hold(self, worst: float, limit: float, patience: float) -> None:
        end = time.monotonic() + patience
        while True:
            if self.unpriced_calls:
                raise CostLimitError(
                    "cannot enforce `max_cost`: the provider does not report how many tokens an answer took; "
                    "run without `max_cost`"
                )
            self._change(worst)  # say so first, then look: of two processes at once, one sees the other
            spent, held = self._others()
            if self.spent + self._held + spent + held <= limit:
                return
            self._change(-worst)
            spent += self.spent
            if spent + worst > limit or (time.monotonic() >= end and not (self._held and patience)):
                raise CostLimitError(
                    f"${spent:.4f} of at most ${limit:.4f} spent, and the next answer may cost ${worst:.4f}; "
                    "run the same command with a higher `max_cost` to go on"
                )
            self._lock.wait(random.uniform(0.2, 0.5))

    def _change(self, dollars: float) -> None:
        held = self._held + dollars
        self._held = held if held > 1e-12 else 0.0  # no dust of rounding
        self._keep(self.spent - self._before, self._held)


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens. What is None costs what other tokens of its side cost."""

    read: float
    written: float
    cached: float | None = None
    cache_write: float | None = None
    reasoning: float | None = None

    def of(self, usage: Usage) -> float | None:
        """What a call costs; `None` when the provider did not count the tokens.

        >>> Price(2.0, 8.0, cached=0.5).of(Usage(1_000_000, 0, cached_tokens=400_000))
        1.4
        """
        if not usage.known and (self.read or self.written):
            return None
        fresh = usage.prompt_tokens - usage.cached_tokens - usage.cache_writes
        dollars = fresh * self.read + usage.cached_tokens * _or(self.cached, self.read)
        dollars += usage.cache_writes * _or(self.cache_write, self.read)
        dollars += (usage.completion_tokens - usage.reasoning_tokens) * self.written
        return (dollars + usage.reasoning_tokens * _or(self.reasoning, self.written)) / 1e6

    def worst(self, read: float, written: float) -> float:
        """The most that a call of so many tokens can cost.

        >>> Price(2.0, 8.0, cache_write=2.5).worst(1_000_000, 500_000)
        6.5
        """
        most_read = max(self.read, self.cached or 0.0, self.cache_write or 0.0)
        return (read * most_read + written * max(self.written, self.reasoning or 0.0)) / 1e6


FREE = Price(0.0, 0.0)


def read_prices(path: str | Path | None = None) -> dict[str, Price]:
    """The table of this package, with the entries of `path` on top."""
    prices = _read(TABLE)
    return {**prices, **_read(Path(path))} if path else prices


def find_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of the longest name that the model's name starts with, at a word's end.

    >>> find_price("gpt-4o-mini-2024-07-18", {"gpt-4o": FREE, "gpt-4o-mini": Price(1, 2)}).read
    1
    >>> find_price("gpt-4o-audio-preview", {"gpt-4": FREE}) is None
    True
    """
    # Only a date, a version of three digits or "latest" may follow: "-4-5" is another model than "-4".
    ending = r"(-\d{3,}[\d-]*|-latest|-preview)?"
    fitting = [name for name in prices if re.fullmatch(re.escape(name) + ending, model)]
    return prices[max(fitting, key=len)] if fitting else None


def _read(path: Path) -> dict[str, Price]:
    try:
        text = read_plain_text(path, limit=HAND_WRITTEN)
    except (OSError, UnicodeDecodeError) as error:
        raise HistobenchError(f"cannot read the prices {path}: {error}") from error
    table = read_yaml(text, where=f"prices {path}") or {}
    if isinstance(table, dict) and isinstance(table.get("models"), dict):
        table = table["models"]
    prices = {}
    for model, entry in table.items() if isinstance(table, dict) else [(path, None)]:
        values: Any = dict(zip(_PRICES, entry, strict=False)) if isinstance(entry, list) else entry
        if not _is_price(values) or (isinstance(entry, list) and len(entry) != 2):
            raise HistobenchError(f"{path}: the price of {model} must be [read, written] in dollars")
        prices[str(model)] = Price(**{name: float(values[name]) for name in _PRICES if name in values})
    return prices


def _is_price(values: Any) -> bool:
    if not isinstance(values, dict) or not {"read", "written"} <= values.keys():
        return False
    numbers = [values[name] for name in _PRICES if name in values]
    return all(isinstance(number, (int, float)) and number >= 0 for number in numbers)


def _or(price: float | None, other: float) -> float:
    return other if price is None else price


# When to stop asking a provider.

#: Every other episode would end the same way: no money, a wrong key, a wrong address or model.
HOPELESS = frozenset({401, 402, 403, 404, 405})
#: How often an empty text is asked for again before it counts as what the model says.
EMPTY_ATTEMPTS = 2


# Limits of requests and tokens per minute: what a provider states in its headers, and what a user gives.

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


@dataclass(frozen=True)
class RateLimits:
    """What may be sent in a minute; None is no limit."""

    requests: float | None = None
    tokens: float | None = None


class RateLimiter:
    """Says how long a request has to wait. Used by one event loop, so that nothing has to be locked."""

    def __init__(
        self, limits: RateLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        now = clock()
        given = asdict(limits or RateLimits())
        self._buckets = {name: _Bucket(limit, now) for name, limit in given.items() if limit is not None}
        self._told: dict[str, tuple[float, float]] = {}  # what is left, and until when that holds

    def wait(self, tokens: float) -> float:
        """Seconds until a request of about so many tokens may be sent; 0 takes its share at once."""
        now = self._clock()
        costs = {"requests": 1.0, "tokens": float(tokens)}
        waits = [bucket.wait(costs[name], now) for name, bucket in self._buckets.items()]
        for name, (left, until) in self._told.items():
            if until > now and left < min(costs[name], 1.0):
                waits.append(until - now)
        longest = max(waits, default=0.0)
        if longest > 0:
            return longest
        for name, bucket in self._buckets.items():
            bucket.take(costs[name])
        self._told = {name: (left - costs[name], until) for name, (left, until) in self._told.items()}
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
                self._told[name] = (left, now + min(seconds, _LONGEST_WAIT))


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


# Several servers of one model: which of them is asked next.

Balance = Literal["least-busy", "round-robin"]


@dataclass
class Host:
    """One server: what it understands, how busy we keep it, and when it wants to be asked again."""

    api: ProviderAPI
    limiter: RateLimiter
    capabilities: Capabilities = field(default_factory=Capabilities)
    #: Nobody asks before this moment: the provider said so to one of us, or it has just failed.
    open_at: float = 0.0
    busy: int = 0
    asked: int = 0

    @property
    def place(self) -> str:
        return without_credentials(self.api.base_url)

    def close_for(self, seconds: float) -> None:
        """Ask nothing for a while."""
        self.open_at = max(self.open_at, time.monotonic() + seconds)


class Hosts:
    """Picks an open server: the one with the fewest requests under way, or each in turn."""

    def __init__(
        self,
        apis: Sequence[ProviderAPI],
        *,
        balance: Balance = "least-busy",
        limits: RateLimits | None = None,
    ) -> None:
        self._hosts = [Host(api, RateLimiter(limits)) for api in apis]
        self._balance = balance

    def __len__(self) -> int:
        return len(self._hosts)

    def pick(self) -> Host:
        """The next server; where all are closed, the one that opens first."""
        now = time.monotonic()
        opened = [host for host in self._hosts if host.open_at <= now]
        if not opened:
            return min(self._hosts, key=lambda host: host.open_at)
        if self._balance == "round-robin":
            return min(opened, key=lambda host: host.asked)
        return min(opened, key=lambda host: (host.busy, host.asked))
