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
        if not usage.known and (self.read or self.written):
            return None
        fresh = usage.prompt_tokens - usage.cached_tokens - usage.cache_writes
        dollars = fresh * self.read + usage.cached_tokens * _or(self.cached, self.read)
        dollars += usage.cache_writes * _or(self.cache_write, self.read)
        dollars += (usage.completion_tokens - usage.reasoning_tokens) * self.written
        return (dollars + usage.reasoning_tokens * _or(self.reasoning, self.written)) / 1e6

    def worst(self, read: float, written: float) -> float:
        most_read = max(self.read, self.cached or 0.0, self.cache_write or 0.0)
        return (read * most_read + written * max(self.written, self.reasoning or 0.0)) / 1e6


FREE = Price(0.0, 0.0)


def read_prices(path: str | Path | None = None) -> dict[str, Price]:
    prices = _read(TABLE)
    return {**prices, **_read(Path(path))} if path else prices


def find_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    # Only a date, a version of three digits or "latest" may follow: "-4-5" is another model than "-4".
    ending = r"(-\d{3,}[\d-]*|-latest|-preview)?"
    fitting = [name for name in prices if re.fullmatch(re.escape(name) + ending, model)]
    return prices[max(fitting, key=len)] if fitting else None


def _read(path: Path) -> dict[str, Price]:
    table = read_yaml(read_plain_text(path), where=f"prices {path}") or {}
    if isinstance(table, dict) and isinstance(table.get("models"), dict):
        table = table["models"]
    prices = {}
    for model, entry in table.items() if isinstance(table, dict) else [(path, None)]:
        try:
            values: Any = entry
            if isinstance(entry, list):
                values = dict(zip(("read", "written"), entry, strict=True))
            prices[str(model)] = Price(**{name: _dollars(values[name]) for name in _PRICES if name in values})
        except (TypeError, ValueError) as error:
            raise HistobenchError(
                f"{path}: the price of {model} must be [read, written] in dollars"
            ) from error
    return prices


def _dollars(value: Any) -> float:
    if not isinstance(value, int | float) or not value >= 0:
        raise ValueError
    return float(value)


def _or(price: float | None, other: float) -> float:
    return other if price is None else price
