"""The cache folder, and fast local folders for temporary copies."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from histobench.core.errors import HistobenchError


def cache_dir() -> Path:
    """`HISTOBENCH_CACHE`, or the platform's cache folder: `$XDG_CACHE_HOME/histobench` on Linux.

    Versions up to 0.2 always used `~/.cache/histobench`. That folder is still used where it exists and the
    platform's folder does not.
    """
    from platformdirs import user_cache_path

    given = os.environ.get("HISTOBENCH_CACHE")
    if given:
        return Path(given).expanduser()
    place, earlier = user_cache_path("histobench", appauthor=False), Path.home() / ".cache" / "histobench"
    return earlier if earlier.is_dir() and not place.exists() else place


# Where files lie that only one machine may use: databases, which shared file systems damage.

#: File systems that several machines see.
SHARED = {
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "ceph", "afs", "9p", "panfs"),
    *("wekafs", "glusterfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "virtiofs", "fuse"),
}
#: Of those in user space, the ones that lie on this machine's own disk.
OWN = {"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.snapfuse"}


def local_dir() -> Path:
    """`HISTOBENCH_LOCAL`, or the cache folder where that is on a disk of this machine, or a temporary one."""
    given = os.environ.get("HISTOBENCH_LOCAL")
    if given:
        return Path(given).expanduser()
    if not is_shared(cache_dir()):
        return cache_dir()
    folder = Path(tempfile.gettempdir()) / f"histobench-{os.getuid()}"
    try:
        make_private(folder)
    except OSError as error:
        raise HistobenchError(
            f"cannot use {folder}: {error.strerror or error}; remove it, or set HISTOBENCH_LOCAL to a folder "
            "of your own on a disk of this machine"
        ) from error
    return folder


def make_private(folder: Path) -> None:
    """Make the folder, or accept one of this user that no other user can write to, and close it to others.

    Its name can be guessed and its parent may be open to all: what another user put there is refused.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder") from None
        if found.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to another user") from None
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "other users can write to it") from None
        folder.chmod(0o700)


def is_shared(path: Path, mounts: str = "/proc/self/mounts") -> bool:
    """Whether a path lies on a file system that other machines see too, as far as this one tells."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    place, best, kind = str(path.absolute().resolve()), "", ""
    for line in lines:
        _, folder, found, *_ = [*line.split(" "), "", ""]
        folder = folder.replace("\\040", " ")
        inside = place == folder or place.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best):
            best, kind = folder, found
    return kind not in OWN and kind.partition(".")[0] in SHARED
