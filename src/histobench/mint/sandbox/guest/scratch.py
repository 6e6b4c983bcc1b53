"""Folders that an episode wrote: how much is in them, and how they are removed, however they were built."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator

MOST_ENTRIES = 16_384
MOST_LEVELS = 200

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def disk_exceeds(folder: str, limit: int, *, besides: int = 0) -> bool:
    """Whether the files beneath `folder` and those `besides` take more than `limit` bytes.

    Also when there are more than MOST_ENTRIES of them, or folders deeper than MOST_LEVELS: paths have no part
    in this, so their length does not matter.
    """
    taken, entries = besides, 0
    levels: list[tuple[int, list[str]]] = []  # an open folder and its subfolders still to be visited
    try:
        name, within = folder, None
        while True:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed while we looked
                descriptor = _open_folder(name, within)
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
    finally:
        for descriptor, _ in levels:
            os.close(descriptor)


def claimed_folder(prefix: str) -> tuple[str, int]:
    """A new temporary folder and a descriptor that claims it; folders without a claim are removed.

    The claim is a lock, which the kernel drops when the last process that holds the descriptor has ended,
    however it ended. Only folders of this user with this prefix are looked at.
    """
    import fcntl  # here: reports are also built where there is none

    _remove_unclaimed(prefix)
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        descriptor = os.open(path, _FOLDER)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # another process took it for an unclaimed one
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return path, descriptor
        os.close(descriptor)


def _remove_unclaimed(prefix: str) -> None:
    import fcntl

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


def remove_tree(path: str) -> None:
    """Remove the folder `path` and all that is in it, as far as it can be removed."""
    for _ in removal(path):
        pass


def removal(path: str) -> Iterator[None]:
    """Remove the folder `path` one entry at a time, as far as it can be removed.

    What lies deeper than one folder is first moved up, so that neither depth nor a path's length matters.
    """
    try:
        top = _open_folder(path, None)
    except OSError:
        return
    try:
        yield from _empty(top)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _empty(top: int) -> Iterator[None]:
    prefix, moved = secrets.token_hex(8), 0
    progress = True
    while progress:
        progress = False
        for name in os.listdir(top):
            yield
            if _unlink(name, top):
                progress = True
                continue
            with contextlib.suppress(OSError):
                folder = _open_folder(name, top)
                try:
                    for inner in os.listdir(folder):
                        yield
                        if not _unlink(inner, folder):
                            _make_usable(inner, folder)
                            moved += 1
                            os.rename(inner, f"{prefix}-{moved}", src_dir_fd=folder, dst_dir_fd=top)
                        progress = True
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=top)
                progress = True


def _unlink(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _open_folder(name: str, within: int | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=within)
    except PermissionError:  # its owner took its own rights away
        _make_usable(name, within)
        return os.open(name, _FOLDER, dir_fd=within)


def _make_usable(name: str, within: int | None) -> None:
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
