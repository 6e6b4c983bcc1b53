"""Claims on work: a file that says who is at it. They spare work; nothing is wrong where there are none.

A claim is a file created exclusively, whose time is renewed while its holder lives. One that has not been
renewed for `STALE` seconds, or whose process is gone from this machine, is no claim any more. File locks
would not do: on many shared file systems they do nothing, and on others a dead machine holds them for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import create_json, read_note

#: Seconds between two renewals, and after how many without one a claim counts no more.
RENEWED = 5.0
STALE = 60.0


class Claim:
    """A claim that is held; `release` gives it back."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self._path = path
        self._id = holder["id"]
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="histobench-claim", daemon=True).start()

    def release(self) -> None:
        """Give it back, unless another has taken it over in the meantime."""
        self._released.set()
        with contextlib.suppress(HistobenchError, OSError):
            if (read_note(self._path) or {}).get("id") == self._id:
                self._path.unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._released.wait(RENEWED):
            with contextlib.suppress(OSError):
                os.utime(self._path, follow_symlinks=False)


def try_claim(path: Path, **facts: Any) -> Claim | None:
    """The claim on `path`, None while another holds it; `facts` stand in the file for whoever looks."""
    holder = {**_self(), **facts}
    if create_json(path, holder, lasting=False):
        return Claim(path, holder)
    if holder_of(path) is not None:
        return None
    with contextlib.suppress(FileNotFoundError):  # of two that find it stale, one moves it away
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        os.rename(path, aside)
        aside.unlink(missing_ok=True)
    return Claim(path, holder) if create_json(path, holder, lasting=False) else None


def holder_of(path: Path) -> dict[str, Any] | None:
    """Who holds a claim that still counts: host, pid and whatever else was said; None if nobody does."""
    holder = read_note(path)
    if holder is None:
        return None
    same = all(holder.get(key) == value for key, value in _machine().items())
    pid = holder.get("pid")
    if same and not (type(pid) is int and pid > 0 and _lives(pid, str(holder.get("started", "")))):
        return None
    try:
        age = _now(path.parent) - path.lstat().st_mtime
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


def _self() -> dict[str, Any]:
    return {**_machine(), "pid": os.getpid(), "started": _started(os.getpid()), "id": uuid.uuid4().hex}


def _machine() -> dict[str, str]:
    """Where process numbers mean the same: host, boot, and the numbers' own world inside a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        world = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = world = ""
    return {"host": socket.gethostname(), "boot": boot, "pids": world}


def _lives(pid: int, started: str) -> bool:
    if os.name == "nt":  # there the call would end the process; the age of its mark decides
        return True
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


def _now(folder: Path) -> float:
    """The time as the disk's own clock has it: those of two machines may differ by minutes."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".now-", suffix=".tmp") as probe:
        return os.fstat(probe.fileno()).st_mtime
