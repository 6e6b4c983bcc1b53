"""Time that a process wanted to run and was not let: a busy machine is not the model's failure."""

from __future__ import annotations


def starved_seconds(pid: int | str = "self") -> float:
    """How long the process's main thread has waited for a processor so far; 0 where the kernel does not say.

    >>> starved_seconds() >= 0
    True
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as handle:
            return int(handle.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
