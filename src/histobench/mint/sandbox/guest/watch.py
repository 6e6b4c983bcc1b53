"""Finds episodes that take more than their limits allow, and slows down those that take too much time."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

from . import usage
from .confinement import MEGABYTE
from .processes import Process, process_table, trees
from .scratch import disk_exceeds

MOST_SESSIONS = 16

_TICKS = os.sysconf("SC_CLK_TCK")
_LOWEST_PRIORITY = 19
_BUSY_PROCESSORS = 1.5
_MANY_RUNNING = 4
_LOOKS_PER_DEEP_LOOK = 5


@dataclass
class Spent:
    """Processor time of one episode, in ticks."""

    seen: int = 0  # of those that live, and of the children they waited for
    lost: int = 0  # of those that went without anybody waiting for them
    moment: float = 0.0

    def add(self, ticks: int) -> float:
        """Take a new sum; returns how many processors were busy since the last one."""
        now, before = time.monotonic(), self.seen + self.lost
        self.lost += max(0, self.seen - ticks)
        self.seen = ticks
        elapsed, self.moment = now - self.moment, now
        return (self.seen + self.lost - before) / _TICKS / elapsed

    def seconds(self) -> float:
        """Processor time in all."""
        return (self.seen + self.lost) / _TICKS


class Watch:
    """Looks at all episodes of a zygote, a few times a second.

    `tmpfs` are the mounts that an episode has for itself; without any it has no network namespace either, and
    its files lie in a folder of the host.
    """

    def __init__(self, limits: dict[str, Any], *, tmpfs: tuple[str, ...]) -> None:
        self._limits = limits
        self._tmpfs = tmpfs
        self._spent: dict[int, Spent] = {}
        self._looks = 0
        self._socket_bytes = usage.socket_bytes()

    def look(self, scratch_of: dict[int, str | None]) -> dict[int, str]:
        """For each episode, by its first process, that broke a limit: which ("memory", "disk", ...)."""
        self._looks += 1
        self._spent = {root: self._spent.get(root, Spent()) for root in scratch_of}
        found = {}
        for root, members in trees(scratch_of, process_table()).items():
            if members and (reason := self._offence(root, members, scratch_of[root])):
                found[root] = reason
        return found

    def _offence(self, root: int, members: list[Process], scratch: str | None) -> str:
        spent = self._spent[root]
        busy = spent.add(sum(process.ticks for process in members))
        if spent.seconds() > self._limits["cpu_seconds"]:
            return "cpu"
        if len({process.session for process in members}) > MOST_SESSIONS:
            return "sessions"
        if busy > _BUSY_PROCESSORS or sum(process.state == "R" for process in members) > _MANY_RUNNING:
            _slow_down(root, members)
        if self._tmpfs:
            first = next((process for process in members if process.pid == root), members[0]).folder()
            besides = usage.tmpfs_bytes(first, self._tmpfs)
            besides += usage.sockets_in_namespace(first) * self._socket_bytes
        else:
            opened = usage.open_files(members)
            besides = len(opened.sockets) * self._socket_bytes
            if scratch and self._disk_exceeds(scratch, members, opened):
                return "disk"
        if usage.memory_exceeds(self._limits["memory_mb"] * MEGABYTE, members, besides=besides):
            return "memory"
        return ""

    def _disk_exceeds(self, scratch: str, members: list[Process], opened: usage.OpenFiles) -> bool:
        nameless = sum(opened.deleted.values())
        if self._looks % _LOOKS_PER_DEEP_LOOK == 0:
            # Nobody tells how long a file is that is only mapped; it is as long as a file may be.
            mapped = usage.deleted_mappings(members, scratch) - set(opened.deleted)
            nameless += len(mapped) * self._limits["file_mb"] * MEGABYTE
        return disk_exceeds(scratch, self._limits["scratch_mb"] * MEGABYTE, besides=nameless)


def _slow_down(root: int, members: list[Process]) -> None:
    """Let the episode's further processes run only when nobody else wants to; it cannot undo that.

    The kernel shares time out by sessions first, if it does so at all, and among the threads of one session
    then: both are told.
    """
    sessions = {process.session: process for process in members}
    for process in members:
        if process.pid == root:
            sessions.pop(process.session, None)
            if process.threads <= _MANY_RUNNING:
                continue
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, int(thread), _LOWEST_PRIORITY)
    for process in sessions.values():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/autogroup", "w") as handle:
            handle.write(str(_LOWEST_PRIORITY))
