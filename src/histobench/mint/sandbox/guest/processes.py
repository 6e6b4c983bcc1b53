"""What runs: the kernel's process table, and which episode each process belongs to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    pid: int
    state: str
    parent: int
    ticks: int  # processor time of it and of the children it has waited for
    threads: int

    def folder(self) -> str:
        """Where /proc shows it: by a living thread where the first one is dead, of which nothing is shown."""
        folder = f"/proc/{self.pid}"
        if self.state == "Z" and self.threads > 1:
            with contextlib.suppress(OSError, IndexError, ValueError):
                for name in os.listdir(f"{folder}/task"):
                    if _fields(f"{folder}/task/{name}/stat")[0] not in (b"Z", b"X"):
                        return f"{folder}/task/{name}"
        return folder


def process_table() -> dict[int, Process]:
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we looked
            fields = _fields(f"/proc/{pid}/stat")
            ticks = sum(map(int, fields[11:15]))
            found[pid] = Process(pid, fields[0].decode(), int(fields[1]), ticks, int(fields[17]))
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


def threads_of(uid: int) -> int:
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def starved_seconds(pid: int | str = "self") -> float:
    """How long a process's main thread has waited for a processor so far; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as handle:
            return int(handle.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _fields(path: str) -> list[bytes]:
    with open(path, "rb") as handle:
        # The command name may hold spaces and brackets; the fields after it do not.
        return handle.read().rpartition(b")")[2].split()
