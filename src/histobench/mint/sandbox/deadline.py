"""The hard time limit of a cell, as the host measures it."""

from __future__ import annotations

import time
from typing import Any

from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.guest.starvation import starved_seconds


class Deadline:
    """A moment that moves on by the time for which the process was kept from running, up to a bound.

    The host asks the kernel for that time; nothing the process says about itself counts.
    """

    def __init__(self, seconds: float, *, pid: int, patience: float) -> None:
        self.moment = time.monotonic() + seconds
        self._pid = pid
        self._already_starved = starved_seconds(pid)
        self._patience = patience
        self._granted = 0.0

    def extend(self, seconds: float) -> None:
        """Move on for a reason of the host's own."""
        self.moment += seconds

    def passed(self) -> bool:
        """Whether the time is over, after what starvation adds."""
        if time.monotonic() <= self.moment:
            return False
        starved = min(starved_seconds(self._pid) - self._already_starved, self._patience)
        self.moment += max(0.0, starved - self._granted)
        self._granted = max(starved, self._granted)
        return time.monotonic() > self.moment


def next_message(channel: Channel, deadline: Deadline) -> dict[str, Any]:
    """The next message; TimeoutError when there is none and the time is over."""
    while True:
        try:
            return channel.receive(deadline.moment)
        except TimeoutError:
            if deadline.passed():
                raise
