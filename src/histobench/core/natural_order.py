"""The order in which people count: 2 ways come before 10."""

from __future__ import annotations

import re


def natural_order(text: object) -> list[str | int]:
    """A key to sort by.

    >>> sorted(["10way", "2way", "", "all"], key=natural_order)
    ['', '2way', '10way', 'all']
    """
    # Words and numbers take turns in what the expression gives, so that like is compared with like.
    parts = re.split(r"(\d+)", str(text))
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]
