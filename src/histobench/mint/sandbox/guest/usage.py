"""How much memory, disk and how many sockets the processes of an episode hold together."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from .processes import Process

_DELETED = " (deleted)"
# What a socket may hold in the kernel: its send buffer (which the filter keeps at the default size) and the
# message that fills it up.
_OVER_THE_BUFFER = 64 << 10
_USUAL_BUFFER = 212_992


def socket_bytes() -> int:
    """The most that one socket of default size can hold of the kernel's memory."""
    try:
        with open("/proc/sys/net/core/wmem_default", "rb") as handle:
            return int(handle.read()) + _OVER_THE_BUFFER
    except (OSError, ValueError):
        return _USUAL_BUFFER + _OVER_THE_BUFFER


def memory_exceeds(limit: int, members: Iterable[Process], *, besides: int) -> bool:
    """Whether the processes and what they hold `besides` take more than `limit` bytes.

    The quick sum counts pages that processes share once for each; the exact one, made only when the quick one
    is over the limit, counts each by its share. Files are not in it, nor what is mapped of a tmpfs: that
    counts where it lies.
    """
    folders = [process.folder() for process in members]
    return (
        besides
        + sum(_kilobytes(folder, "status", (b"RssAnon:", b"VmSwap:", b"VmPTE:")) for folder in folders)
        > limit
        and besides + sum(map(_exact_bytes, folders)) > limit
    )


def tmpfs_bytes(folder: str, mounts: Iterable[str]) -> int:
    """What lies in the tmpfs `mounts` of the process whose folder in /proc is `folder`, deleted files too."""
    taken = 0
    for mount in mounts:
        try:
            system = os.statvfs(f"{folder}/root{mount}")
        except OSError:
            continue
        taken += (system.f_blocks - system.f_bfree) * system.f_frsize
    return taken


def sockets_in_namespace(folder: str) -> int:
    """How many sockets belong to the network namespace of a process, those on their way included."""
    try:
        with open(f"{folder}/net/sockstat", "rb") as handle:
            return int(handle.readline().split()[2])
    except (OSError, IndexError, ValueError):
        return 0


@dataclass
class OpenFiles:
    """What the processes of an episode hold open."""

    sockets: set[int] = field(default_factory=set)
    deleted: dict[int, int] = field(default_factory=dict)  # bytes of files without a name, by inode


def open_files(members: Iterable[Process]) -> OpenFiles:
    """Sockets and nameless files behind the descriptors of `members`."""
    found = OpenFiles()
    for process in members:
        folder = f"{process.folder()}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                status = os.stat(f"{folder}/{name}")
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                found.sockets.add(status.st_ino)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                found.deleted[status.st_ino] = status.st_blocks * 512
    return found


def deleted_mappings(members: Iterable[Process], scratch: str) -> set[int]:
    """Inodes of files of `scratch` that have no name any more and are mapped into memory."""
    found = set()
    for process in members:
        try:
            with open(f"{process.folder()}/maps", encoding="utf-8", errors="replace") as handle:
                for line in handle:
                    if line.endswith(f"{_DELETED}\n"):
                        parts = line.split(maxsplit=5)
                        if parts[5].startswith(scratch):
                            found.add(int(parts[4]))
        except (OSError, IndexError, ValueError):
            continue
    return found


def _exact_bytes(folder: str) -> int:
    tables = _kilobytes(folder, "status", (b"VmPTE:",))
    shares = _kilobytes(folder, "smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))
    return tables + (shares or _kilobytes(folder, "status", (b"RssAnon:", b"VmSwap:")))


def _kilobytes(folder: str, name: str, rows: tuple[bytes, ...]) -> int:
    """The sum of `rows` of a file of /proc, in bytes; 0 when the process is gone."""
    taken = 0
    try:
        with open(f"{folder}/{name}", "rb") as handle:
            for line in handle:
                if line.startswith(rows):
                    taken += int(line.split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return taken << 10
