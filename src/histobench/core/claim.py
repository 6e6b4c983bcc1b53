"""Claims on work: a file that says which process does it, so that others do something else.

It is stale when it was not renewed for `STALE` seconds, or when its process is gone from this machine. A
stale claim `NAME.json` is taken over by creating `NAME~1.json`, that one by `NAME~2.json`, and so on: the
last counts, and names the token of the one that it replaces. File locks do nothing on many shared disks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import create_json, read_note

#: Seconds between two renewals, and after how many without one a claim is stale.
RENEWED = 5.0
STALE = 60.0


class Claim:
    """A claim that is held; `release` gives it back."""

    def __init__(self, path: Path, number: int, token: str, limit: float | None) -> None:
        self._path = path
        self._number = number
        self._token = token
        self._end = None if limit is None else time.monotonic() + limit
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="histobench-claim", daemon=True).start()

    def holds(self) -> bool:
        """Return whether no other process has taken the claim over."""
        own, successor = (read_note(_file(self._path, self._number + step)) or {} for step in (0, 1))
        return own.get("id") == self._token and successor.get("over") != self._token

    def release(self) -> None:
        """Give the claim back, unless another process has taken it over."""
        self._released.set()
        with contextlib.suppress(HistobenchError, OSError):
            if self.holds():  # those that it replaced go first: without them no one can build on them
                for number in range(self._number + 1):
                    _file(self._path, number).unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._released.wait(RENEWED) and (self._end is None or time.monotonic() < self._end):
            with contextlib.suppress(HistobenchError, OSError):
                if not self.holds():
                    return
                os.utime(_file(self._path, self._number), follow_symlinks=False)


def try_claim(path: Path, *, limit: float | None = None, **facts: Any) -> Claim | None:
    """Claim `path`; return None while another process holds it.

    After `limit` seconds the claim is not renewed any more. `facts` are written into the file for readers.
    """
    number, before = _last(path)
    if before is not None and _counts(_file(path, number), before) is not None:
        return None
    token, over = uuid.uuid4().hex, (before or {}).get("id")
    mine, pid = _file(path, number + 1), os.getpid()
    me = {**_machine(), "pid": pid, "started": _started(pid), "since": time.time()}
    if not create_json(mine, {**me, **facts, "id": token, "over": over}, lasting=False):
        return None
    # What was seen may be old by now: others may have released, and claimed anew, what this one replaces.
    replaced = before is None or (read_note(_file(path, number)) or {}).get("id") == over
    successor = _file(path, number + 2)
    other = read_note(successor)
    if not replaced or (other is not None and _counts(successor, other) is not None):
        mine.unlink(missing_ok=True)
        return None
    if other is not None:
        successor.unlink(missing_ok=True)  # left by a process that was killed
    return Claim(path, number + 1, token, limit)


def holder_of(path: Path, *, even_stale: bool = False) -> dict[str, Any] | None:
    """Return who holds a claim: host, pid, facts, and the seconds since it was renewed as `age`.

    None if no one does, or if the claim is stale; with `even_stale` the latter has no `age`.
    """
    number, note = _last(path)
    counted = None if note is None else _counts(_file(path, number), note)
    return note if counted is None and even_stale else counted


def claimed_name(name: str) -> str:
    """Return the name of what a file claims.

    >>> claimed_name("hash-0a1b~2.json"), claimed_name("hash-0a1b.json")
    ('hash-0a1b', 'hash-0a1b')
    """
    return name.removesuffix(".json").partition("~")[0]


def _file(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}~{number}{path.suffix}") if number else path


def _last(path: Path) -> tuple[int, dict[str, Any] | None]:
    """The number of the last claim in the order of takeovers, and its content; -1 and None without any."""
    number, note = -1, None
    while os.path.lexists(successor := _file(path, number + 1)):
        number, note = number + 1, read_note(successor) or {}
    return number, note


def _counts(file: Path, holder: dict[str, Any]) -> dict[str, Any] | None:
    """The holder with the age of the claim, unless it is stale or damaged."""
    if not holder:
        return None
    same = all(holder.get(key) == value for key, value in _machine().items())
    pid = holder.get("pid")
    if same and not (type(pid) is int and pid > 0 and _lives(pid, str(holder.get("started", "")))):
        return None
    try:
        age = time.time() - file.lstat().st_mtime
    except OSError:
        return None
    # A time in the future: the clock was set back, and a holder that lives would have renewed it since.
    return {**holder, "age": age} if abs(age) < STALE else None


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the claim at `path`; `on_wait` is called once when another has it.

    Where the file system or its permissions do not allow a claim, the caller goes on without one.
    """
    claim, waited, pause = None, False, 0.02
    while True:
        try:
            claim = try_claim(path)
        except (HistobenchError, OSError):
            break
        if claim is not None:
            break
        if not waited:
            on_wait()
            waited = True
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
    try:
        yield
    finally:
        if claim is not None:
            claim.release()


@cache
def _machine() -> dict[str, str]:
    """Where process numbers mean the same: host, boot, and the namespace of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        world = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = world = ""
    return {"host": socket.gethostname(), "boot": boot, "pids": world}


def _lives(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return _started(pid) == started


def _started(pid: int) -> str:
    """When a process began, which tells it from a later one of the same number; "dead" if it has ended.

    A process that has ended and was not waited for is still listed: its state is Z (or X).
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "dead" if state in "ZX" else rest[18]
    except (OSError, IndexError, ValueError):
        return ""
