"""What runs: the kernel's process table, and which episode each process belongs to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """One row of the table."""

    pid: int
    state: str
    parent: int
    ticks: int  # processor time of it and of the children it has waited for
    threads: int

    def folder(self) -> str:
        """Where /proc tells of its memory and files: once the first thread has ended, a living one's place.

        The kernel shows nothing of a process by its first thread's number when that thread is dead, however
        much the others hold.
        """
        folder = f"/proc/{self.pid}"
        if self.state == "Z" and self.threads > 1:
            with contextlib.suppress(OSError, IndexError, ValueError):
                for name in os.listdir(f"{folder}/task"):
                    if _fields(f"{folder}/task/{name}/stat")[0] not in (b"Z", b"X"):
                        return f"{folder}/task/{name}"
        return folder


def process_table() -> dict[int, Process]:
    """All processes that can be seen, by their numbers."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = _fields(f"/proc/{name}/stat")
                found[int(name)] = Process(
                    pid=int(name),
                    state=fields[0].decode(),
                    parent=int(fields[1]),
                    ticks=sum(map(int, fields[11:15])),
                    threads=int(fields[17]),
                )
            except (OSError, IndexError, ValueError):  # it ended while we looked
                continue
    return found


def trees(roots: Iterable[int], table: dict[int, Process]) -> dict[int, list[Process]]:
    """For each of `roots` the processes that descend from it, itself included."""
    found: dict[int, list[Process]] = {root: [] for root in roots}
    for process in table.values():
        ancestor = process.pid
        while ancestor not in found and ancestor in table:
            ancestor = table[ancestor].parent
        if ancestor in found:
            found[ancestor].append(process)
    return found


def children_of(parent: int) -> list[int]:
    """The live or dead-but-unreaped children of `parent`."""
    return [process.pid for process in process_table().values() if process.parent == parent]


def threads_of(uid: int) -> int:
    """How many threads run under `uid` on this machine."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def certainly_without_processes(uid: int) -> bool:
    """Whether one look at all processes shows that none runs under `uid`.

    A process that vanished during the look may have left a child unseen: nothing is certain then.
    """
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    return False
            except OSError:
                return False
    return True


def _fields(path: str) -> list[bytes]:
    with open(path, "rb") as handle:
        # The command name may hold spaces and brackets; the fields after it do not.
        return handle.read().rpartition(b")")[2].split()
