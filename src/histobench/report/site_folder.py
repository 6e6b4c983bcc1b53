"""The folder of a site: written beside its place and moved there when it is whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from histobench.core.errors import HistobenchError

#: A folder with this file is a site, and may be replaced by the next one.
MARK = ".histobench-site"
#: What a site consists of; whatever else lies in its folder is somebody's and is not to be lost.
_PARTS = {MARK, "index.html", "built.txt", "assets", "data", "thumbs"}
#: Kinds of files in the folders of a site.
_KINDS = {"data": {".js"}, "thumbs": {".webp"}, "assets": {".js", ".css", ".svg", ".txt", ""}}


@contextmanager
def site_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder; on success it replaces the site at `out`, on failure nothing has changed.

    A folder that is not empty and was not written by this program is left alone, and so is a site in
    which somebody has put other files.
    """
    if out.exists() and not out.is_dir():
        raise HistobenchError(f"{out} is a file; choose a folder for the site")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise HistobenchError(f"{out} holds other files; choose a new or empty folder for the site")
    others = _foreign(out) if out.is_dir() else []
    if others:
        raise HistobenchError(
            f"{out} holds files besides the site, such as {others[0]}, which replacing it would delete; "
            "move them, or choose another folder"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    except OSError as error:
        raise HistobenchError(f"cannot write {out}: {error.strerror or error}") from error
    try:
        yield building
        (building / MARK).write_text("written by histobench report\n", encoding="ascii")
        building.chmod(0o755)
        _replace(out, building)
    except OSError as error:
        raise HistobenchError(f"cannot write the site {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _foreign(site: Path) -> list[str]:
    """What lies in the folder of a site and cannot be of it, as paths relative to it."""
    others = [path for path in site.iterdir() if path.name not in _PARTS]
    for part, kinds in _KINDS.items():
        below = (path for path in (site / part).rglob("*") if path.is_symlink() or not path.is_dir())
        others += [path for path in below if path.is_symlink() or path.suffix not in kinds]
    return sorted(path.relative_to(site).as_posix() for path in others)


def _replace(out: Path, building: Path) -> None:
    if not out.exists():
        os.replace(building, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    os.replace(out, old)
    os.replace(building, out)
    shutil.rmtree(old, ignore_errors=True)
