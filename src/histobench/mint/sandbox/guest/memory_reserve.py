"""Memory that a cell cannot use up, so that its MemoryError can still be shown and the session goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

with suppress(ImportError):  # Windows has none, and no sandbox either; the host reads the size below
    # By name: a cell that replaces the module's functions does not reach these.
    from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit, setrlimit

#: Address space above an episode's limit, open only while this package's own code runs.
RESERVE_BYTES = 64 << 20


@contextmanager
def within_memory_limit(limit: int) -> Iterator[None]:
    """Hold the block to `limit` bytes of address space; before and after it the reserve is open."""
    _move_limit(limit)
    try:
        yield
    finally:
        _move_limit(None)


@contextmanager
def reserve_open() -> Iterator[None]:
    """Open the reserve during the block, inside `within_memory_limit`."""
    limit = getrlimit(RLIMIT_AS)[0]
    _move_limit(None)
    try:
        yield
    finally:
        _move_limit(limit)


def _move_limit(limit: int | None) -> None:
    hard = getrlimit(RLIMIT_AS)[1]
    soft = hard if limit is None else limit
    if hard != RLIM_INFINITY:
        soft = min(soft, hard)
    setrlimit(RLIMIT_AS, (soft, hard))
