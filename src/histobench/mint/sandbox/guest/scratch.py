"""Folders that an episode wrote: how much is in them, and how they are removed, however they were built."""

from __future__ import annotations

import contextlib
import os

MOST_ENTRIES = 16_384
MOST_LEVELS = 200

_REMOVE = 'chmod -R u+rwx -- "$0" 2>/dev/null; rm -rf -- "$0" 2>/dev/null'


def disk_exceeds(folder: str, limit: int, *, besides: int = 0) -> bool:
    """Whether the files beneath `folder` and those `besides` take more than `limit` bytes.

    Also when there are more than MOST_ENTRIES of them, folders deeper than MOST_LEVELS, or one that cannot be
    listed. Folders are opened one from the other, so the length of paths does not matter.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError):  # its owner took its own rights away
            raise error

    taken, entries = besides, 0
    try:
        for path, folders, files, descriptor in os.fwalk(folder, onerror=refuse):
            entries += len(folders) + len(files)
            if entries > MOST_ENTRIES or path.count("/") - folder.count("/") > MOST_LEVELS:
                return True
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):  # removed while we looked
                    taken += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
            if taken > limit:
                return True
    except PermissionError:
        return True
    return taken > limit


def remove_tree(path: str) -> None:
    """Remove the folder `path` and all that is in it, as far as it can be removed."""
    if pid := start_removal(path):
        os.waitpid(pid, 0)


def start_removal(path: str) -> int:
    """Start a process that removes the folder `path`, however deep or closed; 0 if it was empty or absent."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
    if not os.path.isdir(path):
        return 0
    return os.posix_spawn("/bin/sh", ["sh", "-c", _REMOVE, path], {"PATH": "/usr/bin:/bin"})
