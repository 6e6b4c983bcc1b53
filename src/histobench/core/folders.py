"""The cache folder, and fast local folders for temporary copies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from histobench.core.errors import HistobenchError


def cache_dir() -> Path:
    """`HISTOBENCH_CACHE`, or the platform's cache folder: `$XDG_CACHE_HOME/histobench` on Linux."""
    from platformdirs import user_cache_path

    given = os.environ.get("HISTOBENCH_CACHE")
    return Path(given).expanduser() if given else user_cache_path("histobench", appauthor=False)


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
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise HistobenchError(
            f"{folder} belongs to another user; set HISTOBENCH_LOCAL to a folder on a disk of this machine"
        )
    folder.chmod(0o700)
    return folder


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
        if (place == folder or place.startswith(folder.rstrip("/") + "/")) and len(folder) >= len(best):
            best, kind = folder, found
    return kind not in OWN and kind.partition(".")[0] in SHARED
