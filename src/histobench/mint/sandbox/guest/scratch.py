"""Folders that an episode wrote: how much is in them, and how they are removed, however they were built."""

from __future__ import annotations

import contextlib
import os
import tempfile

MOST_ENTRIES = 16_384
MOST_LEVELS = 200

_REMOVE = 'chmod -R u+rwx -- "$0" 2>/dev/null; rm -rf -- "$0" 2>/dev/null'
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def disk_exceeds(folder: str, limit: int, *, besides: int = 0) -> bool:
    """Whether the files beneath `folder` and those `besides` take more than `limit` bytes.

    Also when there are more than MOST_ENTRIES of them, folders deeper than MOST_LEVELS, or one that cannot be
    listed. Folders are opened one from the other, so the length of paths does not matter.
    """
    taken, entries = besides, 0
    levels: list[tuple[int, list[str]]] = []  # an open folder and its subfolders still to be visited
    try:
        name, within = folder, None
        while True:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed while we looked
                descriptor = os.open(name, _FOLDER, dir_fd=within)
                subfolders: list[str] = []
                levels.append((descriptor, subfolders))
                with os.scandir(descriptor) as found:
                    for entry in found:
                        entries += 1
                        with contextlib.suppress(FileNotFoundError):
                            taken += entry.stat(follow_symlinks=False).st_blocks * 512
                        if taken > limit or entries > MOST_ENTRIES:
                            return True
                        if entry.is_dir(follow_symlinks=False):
                            subfolders.append(entry.name)
            while levels and not levels[-1][1]:
                os.close(levels.pop()[0])
            if not levels:
                return taken > limit
            if len(levels) > MOST_LEVELS:
                return True
            within, names = levels[-1]
            name = names.pop()
    except PermissionError:  # its owner took its own rights away
        return True
    finally:
        for descriptor, _ in levels:
            os.close(descriptor)


def claimed_folder(prefix: str) -> tuple[str, int]:
    """A new temporary folder and a descriptor that claims it; folders without a claim are removed.

    The claim is a lock, which the kernel drops when the last process that holds the descriptor has ended,
    however it ended. Only folders of this user with this prefix are looked at.
    """
    import fcntl  # here: reports are also built where there is none

    with os.scandir(tempfile.gettempdir()) as found:
        paths = [entry.path for entry in found if entry.name.startswith(prefix)]
    for path in paths:
        with contextlib.suppress(OSError):  # not a folder, not ours, or in use
            if os.lstat(path).st_uid != os.getuid():
                continue
            descriptor = os.open(path, _FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
            finally:
                os.close(descriptor)
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        descriptor = os.open(path, _FOLDER)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # another process took it for an unclaimed one
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return path, descriptor
        os.close(descriptor)


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
