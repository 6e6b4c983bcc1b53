"""How the values of flags are read."""

from __future__ import annotations

import argparse

from histobench.core.plain_data import LARGEST


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, separated by commas."""
    try:
        values = tuple(int(item) for item in text.split(",") if item.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers separated by commas, found {text!r}"
        ) from None
    if any(value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"numbers must be at least 1, found {text!r}")
    return values


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return value


def seed(text: str) -> int:
    """A whole number of at least 0 that tables can hold."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > 19 or int(digits) > LARGEST:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least 0 (at most {LARGEST}), found {shown!r}"
        )
    return int(digits)


def boolean(text: str) -> bool:
    """True or False, however it is spelled."""
    if text.lower() in ("true", "1", "yes", "y", "on"):
        return True
    if text.lower() in ("false", "0", "no", "n", "off"):
        return False
    raise argparse.ArgumentTypeError(f"expected True or False, found {text!r}")
