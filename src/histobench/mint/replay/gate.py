"""A rate of agreement and the rate that is required."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """`agreeing` of `total` cases; `required` is the least share, or `None` where nothing is asked."""

    subject: str
    agreeing: int
    total: int
    required: float | None = None
    note: str = ""

    @property
    def rate(self) -> float | None:
        """The share, if there are cases."""
        return self.agreeing / self.total if self.total else None

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty where nothing is asked or nothing was looked at.

        >>> Gate("books", 99, 100, 0.995).verdict
        'FAIL'
        """
        if self.required is None or self.rate is None:
            return ""
        return "PASS" if self.rate >= self.required else "FAIL"
