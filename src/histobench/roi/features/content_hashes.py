"""Remembers the hashes of files that have not changed, so that a second run does not read them again."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from histobench.roi.features.image_ref import ImageRef

#: A file changed this shortly before it was hashed may change again within the clock's resolution.
SETTLED_NS = 2_000_000_000

#: Files asked for in one question.
AT_ONCE = 500

#: What changes when a file is written: size, two times, inode.
Stamp = tuple[int, int, int, int]


class ContentHashes:
    """A table (file, offset) -> (stamp, sha256) on disk; without a writable folder it remembers nothing."""

    def __init__(self, folder: Path) -> None:
        self._base: sqlite3.Connection | None = None
        self._empty = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(folder / "content-hashes.sqlite", timeout=30)
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS hashes (file TEXT, offset INTEGER, size INTEGER, mtime INTEGER, "
                "ctime INTEGER, inode INTEGER, sha256 BLOB, PRIMARY KEY (file, offset)) WITHOUT ROWID"
            )
            self._empty = self._base.execute("SELECT 1 FROM hashes LIMIT 1").fetchone() is None
        except (OSError, sqlite3.Error):
            self.close()  # costs time, not correctness

    def known(self, refs: Sequence[ImageRef]) -> tuple[list[Stamp | None], list[bytes | None]]:
        """The stamp of every file now, and the hash of each that is still what it was."""
        stamps = [stamp_of(ref) for ref in refs]
        files = [os.path.abspath(ref.file) for ref in refs]
        kept = self._rows(list(dict.fromkeys(files)))
        rows = (kept.get((file, ref.offset)) for file, ref in zip(files, refs, strict=True))
        return stamps, [
            row[4] if row is not None and row[:4] == stamp else None
            for row, stamp in zip(rows, stamps, strict=True)
        ]

    def remember(self, hashed: Iterable[tuple[ImageRef, Stamp | None, bytes]]) -> None:
        """Keep hashes with the stamps taken before reading; files changed a moment ago are not trusted."""
        if self._base is None:
            return
        now = time.time_ns()
        rows = [
            (os.path.abspath(ref.file), ref.offset, *stamp, sha)
            for ref, stamp, sha in hashed
            if stamp is not None and now - max(stamp[1], stamp[2]) > SETTLED_NS
        ]
        try:
            with self._base:
                self._empty = self._empty and not rows
                self._base.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error:
            self.close()  # a full disk costs time here, not correctness

    def close(self) -> None:
        """Let go of the file."""
        if self._base is not None:
            self._base.close()
            self._base = None

    def _rows(self, files: Sequence[str]) -> dict[tuple[str, int], tuple[int, int, int, int, bytes]]:
        """What is remembered of some files; many at a time, because one question per file would be felt."""
        rows: dict[tuple[str, int], tuple[int, int, int, int, bytes]] = {}
        if self._base is None:
            return rows
        try:
            if self._base.execute("SELECT 1 FROM hashes LIMIT 1").fetchone() is None:
                return rows
            for start in range(0, len(files), AT_ONCE):
                some = files[start : start + AT_ONCE]
                found = self._base.execute(
                    "SELECT file, offset, size, mtime, ctime, inode, sha256 FROM hashes "
                    f"WHERE file IN ({','.join('?' * len(some))})",
                    some,
                )
                rows.update({(file, offset): (*stamp, bytes(sha)) for file, offset, *stamp, sha in found})
        except sqlite3.Error:
            return {}
        return rows


def stamp_of(ref: ImageRef) -> Stamp | None:
    """The stamp of the file that holds an image, None when there is no file."""
    try:
        stat = os.stat(ref.file)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
