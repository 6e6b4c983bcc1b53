"""Finds episodes whose processes together take more memory, disk or time than their limits allow."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .processes import Process, process_table, trees
from .scratch import disk_exceeds

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOKS_PER_DEEP_LOOK = 5
_MEGABYTE = 1 << 20
# What a socket may hold in the kernel: its send buffer (which the filter keeps at the default size) and the
# message that fills it up.
_OVER_THE_BUFFER = 64 << 10


@dataclass
class Spent:
    seen: int = 0  # of those that live, and of the children they waited for
    lost: int = 0  # of those that ended without being waited for

    def add(self, ticks: int) -> None:
        self.lost += max(0, self.seen - ticks)
        self.seen = ticks


class Watch:
    """Looks at all episodes of a zygote; `tmpfs` are an episode's own mounts, if it has namespaces."""

    def __init__(self, limits: dict[str, Any], *, tmpfs: tuple[str, ...]) -> None:
        self._limits = limits
        self._tmpfs = tmpfs
        self._spent: dict[int, Spent] = {}
        self._looks = 0
        with socket.socket(socket.AF_UNIX) as usual:
            self._socket_bytes = usual.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) + _OVER_THE_BUFFER

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
        if (spent.seen + spent.lost) / _TICKS > self._limits["cpu_seconds"]:
            return "cpu"
        folders = [process.folder() for process in members]
        if self._tmpfs:
            first = next((process for process in members if process.pid == root), members[0]).folder()
            besides = _tmpfs_bytes(first, self._tmpfs) + _sockets_in_namespace(first) * self._socket_bytes
        else:
            sockets, deleted = _open_files(folders)
            besides = len(sockets) * self._socket_bytes
            if scratch and self._disk_exceeds(scratch, folders, deleted):
                return "disk"
        return "memory" if _memory_exceeds(self._limits["memory_mb"] * _MEGABYTE - besides, folders) else ""

    def _disk_exceeds(self, scratch: str, folders: list[str], deleted: dict[int, int]) -> bool:
        nameless = sum(deleted.values())
        if self._looks % _LOOKS_PER_DEEP_LOOK == 0:
            # The length of a file that is only mapped is not known; it is as long as a file may be.
            mapped = _deleted_mappings(folders, scratch) - set(deleted)
            nameless += len(mapped) * self._limits["file_mb"] * _MEGABYTE
        return disk_exceeds(scratch, self._limits["scratch_mb"] * _MEGABYTE, besides=nameless)


def _memory_exceeds(limit: int, folders: list[str]) -> bool:
    """Whether processes take more than `limit` bytes: a quick sum, then an exact one of each one's share."""
    private = (b"RssAnon:", b"VmSwap:")
    if sum(_bytes_of(folder, "status", (*private, b"VmPTE:")) for folder in folders) <= limit:
        return False
    exact = 0
    for folder in folders:
        shares = _bytes_of(folder, "smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))
        exact += _bytes_of(folder, "status", (b"VmPTE:",)) + (shares or _bytes_of(folder, "status", private))
    return exact > limit


def _bytes_of(folder: str, name: str, rows: tuple[bytes, ...]) -> int:
    """The sum of `rows` of a file of /proc, in bytes; 0 when the process is gone."""
    try:
        with open(f"{folder}/{name}", "rb") as handle:
            return sum(int(line.split()[1]) for line in handle if line.startswith(rows)) << 10
    except (OSError, IndexError, ValueError):
        return 0


def _tmpfs_bytes(folder: str, mounts: Iterable[str]) -> int:
    """What is in the tmpfs `mounts` of a process, deleted files too."""
    taken = 0
    for mount in mounts:
        with contextlib.suppress(OSError):
            system = os.statvfs(f"{folder}/root{mount}")
            taken += (system.f_blocks - system.f_bfree) * system.f_frsize
    return taken


def _sockets_in_namespace(folder: str) -> int:
    """How many sockets belong to the network namespace of a process, those on their way included."""
    try:
        with open(f"{folder}/net/sockstat", "rb") as handle:
            return int(handle.readline().split()[2])
    except (OSError, IndexError, ValueError):
        return 0


def _open_files(folders: Iterable[str]) -> tuple[set[int], dict[int, int]]:
    """Sockets, and nameless files with their bytes, behind the descriptors of processes; by inode."""
    sockets: set[int] = set()
    deleted: dict[int, int] = {}
    for folder in folders:
        try:
            names = os.listdir(f"{folder}/fd")
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(f"{folder}/fd/{name}")
                if stat.S_ISSOCK(status.st_mode):
                    sockets.add(status.st_ino)
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    deleted[status.st_ino] = status.st_blocks * 512
    return sockets, deleted


def _deleted_mappings(folders: Iterable[str], scratch: str) -> set[int]:
    """Inodes of files of `scratch` that have no name any more and are mapped into memory."""
    found = set()
    for folder in folders:
        with (
            contextlib.suppress(OSError, IndexError, ValueError),
            open(f"{folder}/maps", encoding="utf-8", errors="replace") as handle,
        ):
            for line in handle:
                parts = line.split(maxsplit=5)
                if line.endswith(" (deleted)\n") and parts[5].startswith(scratch):
                    found.add(int(parts[4]))
    return found
