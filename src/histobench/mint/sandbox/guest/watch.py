"""Finds episodes that take more than their limits allow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import usage
from .confinement import MEGABYTE
from .processes import Process, process_table, trees
from .scratch import disk_exceeds

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOKS_PER_DEEP_LOOK = 5


@dataclass
class Spent:
    """Processor time of one episode, in ticks."""

    seen: int = 0  # of those that live, and of the children they waited for
    lost: int = 0  # of those that went without anybody waiting for them

    def add(self, ticks: int) -> None:
        """Take a new sum."""
        self.lost += max(0, self.seen - ticks)
        self.seen = ticks

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
        spent.add(sum(process.ticks for process in members))
        if spent.seconds() > self._limits["cpu_seconds"]:
            return "cpu"
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
            # No one tells how long a file is that is only mapped; it is as long as a file may be.
            mapped = usage.deleted_mappings(members, scratch) - set(opened.deleted)
            nameless += len(mapped) * self._limits["file_mb"] * MEGABYTE
        return disk_exceeds(scratch, self._limits["scratch_mb"] * MEGABYTE, besides=nameless)
