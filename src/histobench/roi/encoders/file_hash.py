"""The sha256 of large files, computed once and remembered."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_note, regular, write_json
from histobench.core.folders import cache_dir

#: Bytes of a file that is read again rather than trusted to be unchanged.
SMALL = 2**24


def sha256_of(path: Path) -> str:
    """The file's sha256; a file whose size, times and inode have not changed is not read again."""
    path = path.resolve()
    stat = path.stat()
    # Copies and archives keep a file's time of writing; its time of change no one can set.
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{stat.st_ino}"
    known = read_note(_memory()) or {}
    if key in known:
        return known[key]
    digest = _digest(path)
    kept = {name: value for name, value in known.items() if not name.startswith(f"{path}|")}
    # A read-only home costs time, not correctness.
    with contextlib.suppress(HistobenchError):
        write_json(_memory(), kept | {key: digest})
    return digest


def sha256_now(path: Path) -> str:
    """The same, with small files read every time: an edit may come within the resolution of the clock."""
    return _digest(path) if path.stat().st_size <= SMALL else sha256_of(path)


def _memory() -> Path:
    return cache_dir() / "sha256.json"


def _digest(path: Path) -> str:
    with open(regular(path), "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
