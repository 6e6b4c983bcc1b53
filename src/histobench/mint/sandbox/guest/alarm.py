"""The soft time limit: an alarm that raises TimeoutError inside the model's code and keeps its state."""

from __future__ import annotations

import linecache
import signal
import threading
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


class CellClock:
    """The time left to the running cell. It stands still while any thread of the cell waits for the host."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget everything, also who was in the middle of a change: for a forked process."""
        self._changing = threading.RLock()
        self._left: float | None = None  # as of `_since`; None between cells and after the alarm
        self._since = 0.0
        self._stops = 0
        self._held = 0
        self._rang = False

    def start(self, seconds: float) -> None:
        """Give the cell `seconds`, from now or from when the clock goes on."""
        with self.held_back(), self._changing:
            self._left, self._since = seconds, time.monotonic()
            if not self._stops:
                signal.setitimer(signal.ITIMER_REAL, seconds)

    def end(self) -> None:
        """The cell is over, or its time is."""
        with self.held_back(), self._changing:
            self._left = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def stop(self) -> None:
        """Stand still until `go_on`; several threads may ask for it at once."""
        with self.held_back(), self._changing:
            self._stops += 1
            if self._stops == 1 and self._left is not None:
                self._left, self._since = signal.setitimer(signal.ITIMER_REAL, 0)[0], time.monotonic()

    def go_on(self, excused: float) -> None:
        """Count the time that passed, less `excused` seconds that were not the cell's doing."""
        with self.held_back(), self._changing:
            self._stops -= 1
            if self._left is None:
                return
            now = time.monotonic()
            self._left -= max(0.0, now - self._since - excused)
            self._since = now
            if self._left <= 0:  # a short timer would be stopped again by the next call before it could ring
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            elif not self._stops:
                signal.setitimer(signal.ITIMER_REAL, self._left)

    def may_ring(self) -> bool:
        """Whether an alarm may interrupt the main thread now; one that comes at a bad moment is kept."""
        if self._left is None:  # a second signal for the same end
            return False
        self._rang = self._held > 0
        return not self._rang

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the alarm interrupt the main thread only after the block.

        Blocking the signal is not enough: the kernel would hand it to another thread, and Python would still
        raise the exception in this one.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._tell_if_it_rang()

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Inside `held_back`: let the alarm interrupt this block, which only waits."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        held, self._held = self._held, 0
        try:
            self._tell_if_it_rang()
            yield
        finally:
            self._held = held

    def _tell_if_it_rang(self) -> None:
        if self._rang and not self._held:
            self._rang = False
            signal.raise_signal(signal.SIGALRM)


clock = CellClock()


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
        if not clock.may_ring():
            return
        owed = min(starved_seconds() - already_starved, patience) - granted
        if owed < _NEGLIGIBLE:
            clock.end()
            time_is_up(signum, frame)
        granted += owed
        clock.start(owed)

    signal.signal(signal.SIGALRM, ring)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    clock.start(seconds)
    try:
        yield limit
    finally:
        clock.end()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


class Pause:
    """A stopped clock; of the time that passes, `excused` seconds are not the cell's doing."""

    def __init__(self, excused: float) -> None:
        self.excused = excused


@contextmanager
def alarm_paused(excused: float = 0.0) -> Iterator[Pause]:
    """Keep the alarm silent during the block, then count the time that was not excused."""
    pause = Pause(excused)
    clock.stop()
    try:
        yield pause
    finally:
        clock.go_on(pause.excused)
