"""Prices of models in US dollars per million tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_yaml
from histobench.mint.agents.completion import Usage

TABLE = Path(__file__).parent / "prices.yaml"
_PRICES = ("read", "written", "cached", "cache_write", "reasoning")


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
    text = read_plain_text(path)
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
