"""The sha256 of large files, computed once and remembered."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from histobench.core.atomic import write_json
from histobench.core.cache_folder import cache_dir as cache_dir
from histobench.core.errors import HistobenchError


def sha256_of(path: Path) -> str:
    """The file's sha256; a file whose size and time have not changed is not read again."""
    path = path.resolve()
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}"
    known = _read_known()
    if key not in known:
        known[key] = _digest(path)
        # A read-only home costs time, not correctness.
        with contextlib.suppress(HistobenchError):
            write_json(_memory(), known)
    return known[key]


def _memory() -> Path:
    return cache_dir() / "sha256.json"


def _read_known() -> dict[str, str]:
    try:
        content = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
