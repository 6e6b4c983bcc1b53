"""The seed of everything that is drawn, as the statistics verbs are given it."""

from __future__ import annotations

from histobench.core.errors import HistobenchError


def check_random_state(random_state: int) -> None:
    """Refuse a seed that no generator takes."""
    if random_state < 0:
        raise HistobenchError(f"`random_state` must not be negative ({random_state})")
