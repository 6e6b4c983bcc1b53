"""Folders that an episode wrote: how much is in them, and how they are removed, however they were built."""

from __future__ import annotations

import contextlib
import os
import subprocess

MOST_ENTRIES = 16_384
MOST_LEVELS = 200

_REMOVE = 'chmod -R u+rwx -- "$0" 2>/dev/null; rm -rf -- "$0" 2>/dev/null'


def disk_exceeds(folder: str, limit: int, *, besides: int = 0) -> bool:
    """Whether files beneath `folder` take more than `limit` bytes, are too many, too deep or unreadable."""

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
    """Remove the folder `path` and all that is in it, however deep or closed, as far as it can be removed."""
    try:
        os.rmdir(path)  # mostly it is empty
    except OSError:
        environment = {"PATH": "/usr/bin:/bin"}
        subprocess.run(["/bin/sh", "-c", _REMOVE, path], env=environment, check=False)
