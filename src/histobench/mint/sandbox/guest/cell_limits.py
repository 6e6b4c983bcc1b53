"""What bounds a cell from inside: an alarm that raises TimeoutError in it, its memory, and its output."""

from __future__ import annotations

import io
import linecache
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .processes import starved_seconds

with suppress(ImportError):  # Windows has none, and no sandbox either
    # By name: a cell that replaces the module's functions does not reach these.
    from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit, setrlimit

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


@contextmanager
def soft_limit(seconds: float, *, patience: float = 0.0) -> Iterator[Callable[[BaseException | None], bool]]:
    """Raise TimeoutError after `seconds`, once; up to `patience` seconds without a processor are added.

    The block gets a function that tells this exception from any other.
    """
    shown = int(seconds) if float(seconds).is_integer() else seconds
    time_is_up = _namespace["PythonREPL"].time_limit(shown)
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
        yield lambda e: isinstance(e, TimeoutError) and str(e) == f"Timed out after {shown} seconds."
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


class AlarmPaused:
    """Keeps the alarm silent during the block; then the time that is not `excused` counts."""

    def __init__(self, excused: float = 0.0) -> None:
        self.excused = excused

    def __enter__(self) -> AlarmPaused:
        self._left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        left = self._left - max(0.0, time.monotonic() - self._since - self.excused)
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, left)
        elif self._left:  # a short timer would be stopped by the next call before it could ring
            signal.raise_signal(signal.SIGALRM)


#: Address space above an episode's limit, open only while this package's own code runs: there the MemoryError
#: of a cell can be shown, and the session goes on.
RESERVE_BYTES = 64 << 20


@contextmanager
def memory_limit(soft: int | None) -> Iterator[None]:
    """Hold the block to `soft` bytes of address space; None opens the reserve."""
    before = getrlimit(RLIMIT_AS)[0]
    _move_limit(soft)
    try:
        yield
    finally:
        _move_limit(before)


def _move_limit(soft: int | None) -> None:
    hard = getrlimit(RLIMIT_AS)[1]
    limits = [limit for limit in (soft, hard) if limit not in (None, RLIM_INFINITY)]
    setrlimit(RLIMIT_AS, (min(limits, default=hard), hard))


class CappedText(io.StringIO):
    """A text stream that keeps the first `limit` characters and swallows the rest.

    >>> stream = CappedText(3)
    >>> stream.write("ab") + stream.write("cde")
    5
    >>> stream.getvalue()
    'abc'
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        super().write(text[: self._left])
        self._left -= min(self._left, len(text))
        return len(text)


class Capture:
    """Collects what is printed inside the block, up to `limit` characters; standard error is dropped."""

    def __init__(self, limit: int) -> None:
        self._out = CappedText(limit)
        self._saved = (sys.stdin, sys.stdout, sys.stderr)

    def __enter__(self) -> Capture:
        # A new reader each time: model code may have closed or replaced the last one.
        sys.stdin = open("/dev/null", encoding="utf-8")
        sys.stdout, sys.stderr = self._out, CappedText(0)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._saved

    def text(self) -> str:
        return "" if self._out.closed else self._out.getvalue()
