"""Files that are views: made from other files that are each written once, and never changed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

#: Rounds after which a view is left to whoever is still writing.
ROUNDS = 50


def derive(sources: Callable[[], Sequence[Path]], write: Callable[[Sequence[Path]], None]) -> None:
    """Have a view written from its sources, again as long as sources came or changed meanwhile.

    So of several processes that add a source and then derive, whoever writes last has seen all of them.
    """
    for _ in range(ROUNDS):
        found = list(sources())
        before = _state(found)
        write(found)
        if _state(list(sources())) == before:
            return


def is_older(view: Path, sources: Sequence[Path]) -> bool:
    """Whether a view is missing, or older than one of its sources."""
    try:
        made = view.stat().st_mtime_ns
        # Clocks of file systems are coarse: at the same time may be after.
        return any(path.stat().st_mtime_ns >= made for path in sources)
    except FileNotFoundError:
        return True


def _state(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    state = []
    for path in paths:
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        state.append((str(path), stat.st_mtime_ns, stat.st_size))
    return state
