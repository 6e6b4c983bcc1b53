"""The soft time limit: an alarm that raises TimeoutError inside the model's code and keeps its state."""

from __future__ import annotations

import linecache
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .starvation import starved_seconds

# Tracebacks show this function to the model. It has a source of its own, under a name that tells nothing
# about this machine; the names and the line are those that the recorded episodes show.
HIDDEN = "<hidden_filepath>"
_SOURCE = (
    "\n" * 27
    + """\
class PythonREPL:
    def time_limit(seconds):

        def signal_handler(signum, frame):
            raise TimeoutError(f"Timed out after {seconds} seconds.")

        return signal_handler
"""
)
_NEGLIGIBLE = 0.02
_namespace: dict[str, Any] = {"__name__": "hidden"}
exec(compile(_SOURCE, HIDDEN, "exec"), _namespace)
linecache.cache[HIDDEN] = (len(_SOURCE), None, _SOURCE.splitlines(keepends=True), HIDDEN)


class SoftLimit:
    """A running limit; tells its own exception from any other."""

    def __init__(self, seconds: float) -> None:
        self.shown = int(seconds) if float(seconds).is_integer() else seconds

    def caused(self, error: BaseException | None) -> bool:
        """Whether `error` is this limit's."""
        return isinstance(error, TimeoutError) and str(error) == f"Timed out after {self.shown} seconds."


@contextmanager
def soft_limit(seconds: float, *, patience: float = 0.0) -> Iterator[SoftLimit]:
    """Raise TimeoutError in the main thread after `seconds`, once.

    Time for which the process was kept from running is added, up to `patience` seconds.
    """
    limit = SoftLimit(seconds)
    time_is_up = _namespace["PythonREPL"].time_limit(limit.shown)
    already_starved, granted = starved_seconds(), 0.0

    def ring(signum: int, frame: FrameType | None) -> None:
        nonlocal granted
        owed = min(starved_seconds() - already_starved, patience) - granted
        if owed < _NEGLIGIBLE:
            time_is_up(signum, frame)
        granted += owed
        signal.setitimer(signal.ITIMER_REAL, owed)

    signal.signal(signal.SIGALRM, ring)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield limit
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


class Pause:
    """A stopped clock; of the time that passes, `excused` seconds are not the cell's doing."""

    def __init__(self, excused: float) -> None:
        self.excused = excused


@contextmanager
def alarm_paused(excused: float = 0.0) -> Iterator[Pause]:
    """Keep the alarm silent during the block, then count the time that was not excused."""
    pause = Pause(excused)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    try:
        yield pause
    finally:
        if left > 0:
            left -= max(0.0, time.monotonic() - began - pause.excused)
            if left > 0:
                signal.setitimer(signal.ITIMER_REAL, left)
            else:  # a short timer would be stopped again by the next pause before it could ring
                signal.raise_signal(signal.SIGALRM)


@contextmanager
def alarm_held_back() -> Iterator[None]:
    """Deliver the alarm only after the block."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
