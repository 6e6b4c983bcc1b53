"""What a run has spent, the limit it must not pass, and what models cost as far as that is known."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import read_yaml
from histobench.core.plain_file import HAND_WRITTEN, read_plain_text
from histobench.mint.agents.completion import Usage

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
        self._spent = spent
        self._others = others
        self._keep = keep
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
        return self._spent + self._held + sum(self._others()) <= self._max_cost

    def book(self, usage: Usage, cost: float | None) -> None:
        """Enter one answer."""
        with self._lock:
            self._calls += 1
            self._usage += usage
            if cost is None:
                self._unpriced += 1
            else:
                self._spent += cost
                self._keep(self._spent - self._before, self._held)

    def _hold(self, worst: float, limit: float, patience: float) -> None:
        end = time.monotonic() + patience
        while True:
            if self._unpriced:
                raise CostLimitError(
                    "cannot enforce `max_cost`: the provider does not report how many tokens an answer took; "
                    "run without `max_cost`"
                )
            self._change(worst)  # say so first, then look: of two processes at once, one sees the other
            spent, held = self._others()
            if self._spent + self._held + spent + held <= limit:
                return
            self._change(-worst)
            spent += self._spent
            if spent + worst > limit or (time.monotonic() >= end and not (self._held and patience)):
                raise CostLimitError(
                    f"${spent:.4f} of at most ${limit:.4f} spent, and the next answer may cost ${worst:.4f}; "
                    "run the same command with a higher `max_cost` to go on"
                )
            self._lock.wait(random.uniform(0.2, 0.5))

    def _change(self, dollars: float) -> None:
        held = self._held + dollars
        self._held = held if held > 1e-12 else 0.0  # no dust of rounding
        self._keep(self._spent - self._before, self._held)


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
    fitting = [name for name in prices if _names(name, model)]
    return prices[max(fitting, key=len)] if fitting else None


def _names(name: str, model: str) -> bool:
    # Only a date, a version of three digits or "latest" may follow: "-4-5" is another model than "-4".
    return re.fullmatch(rf"{re.escape(name)}(-\d{{3,}}[\d-]*|-latest|-preview)?", model) is not None


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
