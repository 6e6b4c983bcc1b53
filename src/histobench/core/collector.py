"""Python's collector of cyclic garbage, out of the way of work that makes none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make very many objects that all stay, without looking for garbage among them again and again.

    That took a fifth of the time of reading units; in a process with a compiled network millions of other
    objects are looked through, too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
