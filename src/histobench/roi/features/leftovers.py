"""Temporary files of runs that were killed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

#: A file that is being written is younger than this.
ABANDONED_SECONDS = 3600.0


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Delete half-written files (of `name`, or of anything) that nobody has touched for an hour."""
    limit = time.time() - ABANDONED_SECONDS
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(f".{name}") and path.name.endswith(".tmp"):
            with contextlib.suppress(OSError):  # another process may be quicker
                if path.stat().st_mtime < limit:
                    path.unlink()
