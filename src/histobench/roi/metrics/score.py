"""One metric's value, or the reason why it has none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A number, or `None` with the reason it could not be computed."""

    value: float | None
    reason: str | None = None
