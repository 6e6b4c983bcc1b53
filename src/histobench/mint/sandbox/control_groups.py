"""Control groups, version 2: where the user may make one, the kernel itself holds an episode to limits."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from histobench.mint.sandbox.guest.memory_reserve import RESERVE_BYTES
from histobench.mint.sandbox.limits import Limits

_NEEDED = {"memory", "pids"}
_MEGABYTE = 1 << 20
_PATIENCE = 100


def group_for_episodes(
    mounts: Path = Path("/proc/self/mounts"), membership: Path = Path("/proc/self/cgroup")
) -> tuple[Path | None, str]:
    """The nearest group above this process in which this user may make further ones, or why there is none.

    Nothing is moved or switched on for it: it must hand the memory and pids controllers down already, as the
    groups of a systemd user session do, and those of root on a machine with version 2 only.
    """
    tree = next(
        (Path(row[1]) for row in map(str.split, _lines(mounts)) if len(row) > 2 and row[2] == "cgroup2"), None
    )
    if tree is None:
        return None, "control groups of version 2 are not mounted"
    own = next((line[3:] for line in _lines(membership) if line.startswith("0::/")), None)
    if own is None:
        return None, "this process is in no control group of version 2"
    group = tree / own.strip("/")
    while True:
        handed_down = set(" ".join(_lines(group / "cgroup.subtree_control")).split())
        writable = os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)
        if handed_down >= _NEEDED and writable:
            return group, ""
        if group == tree:
            return None, "no control group with the memory and pids controllers is open to this user"
        group = group.parent


class ControlGroups:
    """Groups for the episodes of one zygote beneath `parent`."""

    def __init__(self, parent: Path, limits: Limits, *, name: str) -> None:
        self._parent = parent
        self._limits = limits
        self._name = name
        self._emptying: list[Path] = []

    def enclose(self, number: int, pid: int) -> None:
        """Put an episode, which has not read any code yet, into a group of its own.

        The group's memory limit lies a little above the one that is watched, which comes with better words.
        """
        group = self._group(number)
        group.mkdir()
        memory = self._limits.memory_mb * _MEGABYTE + RESERVE_BYTES
        _write(group / "memory.max", memory)
        _write(group / "pids.max", self._limits.processes)
        for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
            with contextlib.suppress(OSError):  # no swap, or an older kernel
                _write(group / name, value)
        _write(group / "cgroup.procs", pid)

    def ran_out_of_memory(self, number: int) -> bool:
        """Whether the kernel ended a process of this episode because its group was full."""
        counts = dict(line.split() for line in _lines(self._group(number) / "memory.events"))
        return int(counts.get("oom_kill", "0")) > 0

    def remove(self, number: int) -> None:
        """End what still runs in an episode's group and remove the group, now or as soon as it is empty."""
        group = self._group(number)
        if group.is_dir():
            with contextlib.suppress(OSError):
                _write(group / "cgroup.kill", 1)
            self._emptying.append(group)
        self.sweep()

    def sweep(self) -> None:
        """Remove those groups that have become empty."""
        self._emptying = [group for group in self._emptying if not _removed(group)]

    def close(self) -> None:
        """Remove every group that is left."""
        for group in self._parent.glob(f"{self._name}-*"):
            with contextlib.suppress(OSError):
                _write(group / "cgroup.kill", 1)
            self._emptying.append(group)
        for _ in range(_PATIENCE):
            self.sweep()
            if not self._emptying:
                return
            time.sleep(0.01)

    def _group(self, number: int) -> Path:
        return self._parent / f"{self._name}-{number}"


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, value: int) -> None:
    with path.open("w") as handle:
        handle.write(str(value))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
