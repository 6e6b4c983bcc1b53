"""Python's collector of cyclic garbage, out of the way of work that makes none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make many small objects at once without looking through all that there are again and again.

    In a process with a compiled network these are millions.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
