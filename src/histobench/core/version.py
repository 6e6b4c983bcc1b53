"""The version of histobench, in one place, and what other installed packages say of themselves."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__version__ = "0.3.0"


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    return _version(package, _places())


def installed_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group that installed packages offer."""
    return _entry_points(group, _places())


def _places() -> tuple[tuple[str, int], ...]:
    """Where packages are looked for; installing or removing one changes the time of its folder."""
    places = []
    for place in sys.path:
        try:
            places.append((place, os.stat(place or ".").st_mtime_ns))
        except OSError:
            places.append((place, 0))
    return tuple(places)


# Reading what is installed takes milliseconds a package, and a run asks hundreds of times.
@lru_cache(maxsize=64)
def _version(package: str, places: tuple[tuple[str, int], ...]) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


@lru_cache(maxsize=16)
def _entry_points(group: str, places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))
