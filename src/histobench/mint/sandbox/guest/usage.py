"""How much memory and disk an episode and everything it started hold together."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as handle:
            return int(handle.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def disk_exceeds(folder: str, limit: int, *, max_files: int = 16384) -> bool:
    """Whether the files beneath `folder` take more than `limit` bytes, or are too many."""
    taken = files = 0
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    files += 1
                    taken += entry.stat(follow_symlinks=False).st_blocks * 512
                    if taken > limit or files > max_files:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:  # removed while we looked
            continue
    return False


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


def children_of(parent: int) -> list[int]:
    """The live or dead-but-unreaped children of `parent`."""
    return [pid for pid, its_parent in _parents().items() if its_parent == parent]


def greedy_trees(roots: list[int], limit: int, baseline: int) -> list[int]:
    """Those of `roots` whose process tree holds more than `limit` bytes.

    `baseline` is what each fork shares with the zygote. The quick sum subtracts it once per process; the
    exact one, made only when the quick one is over the limit, counts each shared page by its share.
    """
    parents = _parents()
    trees: dict[int, list[int]] = {root: [] for root in roots}
    for pid in parents:
        ancestor = pid
        while ancestor not in trees and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor in trees:
            trees[ancestor].append(pid)
    return [
        root
        for root, members in trees.items()
        if sum(max(0, resident_bytes(pid) - baseline) for pid in members) > limit
        and sum(_proportional_bytes(pid) for pid in members) > limit
    ]


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as handle:
                    # The command name may hold spaces and brackets; the fields after it do not.
                    found[int(name)] = int(handle.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    return found


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as handle:
            for line in handle:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return resident_bytes(pid)
