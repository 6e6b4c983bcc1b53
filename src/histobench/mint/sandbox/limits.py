"""What one episode may use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.guest.processes import starved_seconds

# Loaded once in the zygote; an episode's import of them then costs nothing.
SCIENCE = ("numpy", "scipy.stats", "scipy.optimize", "scipy.integrate", "pandas", "sympy")


@dataclass(frozen=True)
class Limits:
    """Limits of one episode.

    Each process of it is held to `memory_mb` and `cpu_seconds`, and so are all of them together; `scratch_mb`
    holds for its files and, apart from them, for its shared memory.
    """

    memory_mb: int = 2048
    scratch_mb: int = 64
    file_mb: int = 64
    processes: int = 64
    open_files: int = 256
    cpu_seconds: int = 600
    output_chars: int = 65_536
    tool_seconds: float = 600.0  # time that tools may take in one cell without counting against it
    patience: float = 3.0  # how many times its limit a cell may be starved by a busy machine without harm
    grace: float = 5.0  # seconds between the soft time-out, which keeps the state, and the hard kill


# The hard time limit of a cell, as the host measures it.


class Deadline:
    """A moment that moves on, up to a bound, by the time in which the kernel did not run the process."""

    def __init__(self, seconds: float, *, pid: int, patience: float) -> None:
        self.moment = time.monotonic() + seconds
        self._pid = pid
        self._already_starved = starved_seconds(pid)
        self._patience = patience
        self._granted = 0.0

    def extend(self, seconds: float) -> None:
        self.moment += seconds

    def passed(self) -> bool:
        if time.monotonic() <= self.moment:
            return False
        starved = min(starved_seconds(self._pid) - self._already_starved, self._patience)
        self.moment += max(0.0, starved - self._granted)
        self._granted = max(starved, self._granted)
        return time.monotonic() > self.moment


def next_message(channel: Channel, deadline: Deadline) -> dict[str, Any]:
    while True:
        try:
            return channel.receive(deadline.moment)
        except TimeoutError:
            if deadline.passed():
                raise
