"""Which bytes each image is: hashes that are remembered, and the inventory of a dataset made of them."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from histobench.core.errors import HistobenchError
from histobench.roi.data.dataset import RoiDataset, RoiImage
from histobench.roi.data.image_ref import ImageRef, locate
from histobench.roi.features.loading.job import Failure
from histobench.roi.features.loading.loader import Hashing, Pool

#: A file changed this shortly before it was hashed may change again within the clock's resolution.
SETTLED_NS = 2_000_000_000

#: Files asked for in one question.
AT_ONCE = 500

#: Files that are looked at before the workers get to hash them.
PORTION = 2048

#: What changes when a file is written: size, two times, inode.
Stamp = tuple[int, int, int, int]

#: A file, the offset of the image in it, and the file's stamp; None when there is no file.
State = tuple[str, int, Stamp | None]


class ContentHashes:
    """A table (file, offset) -> (stamp, sha256) on disk; in a folder without write access it only reads."""

    def __init__(self, folder: Path) -> None:
        self._base: sqlite3.Connection | None = None
        self._writing: threading.Thread | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "content-hashes.sqlite"
            self._base = sqlite3.connect(path, timeout=30, check_same_thread=False)
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS hashes (file TEXT, offset INTEGER, size INTEGER, mtime INTEGER, "
                "ctime INTEGER, inode INTEGER, sha256 BLOB, PRIMARY KEY (file, offset)) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error):
            self.close()
            self._base = _for_reading(folder / "content-hashes.sqlite")

    def known(self, refs: Sequence[ImageRef]) -> Iterator[list[tuple[State, bytes | None]]]:
        """Portion by portion, the state of every file now and the hash of each that is still what it was."""
        self._finish()
        names = [_full_name(ref.file) for ref in refs]
        kept = self._rows(list(dict.fromkeys(names)))
        for start in range(0, len(refs), PORTION):
            portion = zip(names[start : start + PORTION], refs[start : start + PORTION], strict=True)
            states = [(name, ref.offset, stamp_of(ref)) for name, ref in portion]
            rows = (kept.get((file, offset)) for file, offset, _ in states)
            yield [
                (state, row[4] if row is not None and row[:4] == state[2] else None)
                for row, state in zip(rows, states, strict=True)
            ]

    def remember(self, hashed: Iterable[tuple[State, bytes]]) -> None:
        """Keep hashes with the states taken before reading; files changed a moment ago are not trusted.

        Writing goes on beside the caller's work, until `close`.
        """
        if self._base is None:
            return
        now = time.time_ns()
        rows = [
            (file, offset, *stamp, sha)
            for (file, offset, stamp), sha in hashed
            if stamp is not None and now - max(stamp[1], stamp[2]) > SETTLED_NS
        ]
        self._finish()
        self._writing = threading.Thread(target=_insert, args=(self._base, rows))
        self._writing.start()

    def close(self) -> None:
        """Let go of the file, with everything written."""
        self._finish()
        if self._base is not None:
            self._base.close()
            self._base = None

    def _finish(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

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


def _for_reading(path: Path) -> sqlite3.Connection | None:
    """What somebody remembered in a folder that cannot be written to; without it, it costs time only."""
    try:
        if not path.is_file():
            return None
        address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        return sqlite3.connect(address, uri=True, check_same_thread=False)
    except (OSError, sqlite3.Error):
        return None


def _full_name(file: str) -> str:
    if file.startswith("/") and "/." not in file and "//" not in file:
        return file  # it is one already, which `abspath` takes much longer to find out
    return os.path.abspath(file)


def _insert(base: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    try:
        with base:
            base.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    except sqlite3.Error:
        pass  # a full disk costs time here, not correctness


def stamp_of(ref: ImageRef) -> Stamp | None:
    """The stamp of the file that holds an image, None when there is no file."""
    try:
        stat = os.stat(ref.file)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@dataclass(frozen=True)
class Inventory:
    """Per path of the dataset its content hash; per hash one place to read it from; the unreadable paths."""

    keys: Mapping[Path, bytes]
    refs: Mapping[bytes, ImageRef]
    unreadable: Mapping[Path, str]
    hashes: ContentHashes

    def key_of(self, image: RoiImage) -> bytes | None:
        """The content hash of an image, None if it cannot be read."""
        return self.keys.get(image.path)

    def close(self) -> None:
        """Wait until the hashes are remembered."""
        self.hashes.close()


def take_inventory(dataset: RoiDataset, pool: Pool, memory: Path) -> Inventory:
    """Hash every image that has changed since it was last hashed."""
    paths = list(dict.fromkeys(image.path for images in dataset.splits.values() for image in images))
    unreadable: dict[Path, str] = {}
    found: list[Path] = []
    refs: list[ImageRef] = []
    for path in paths:
        try:
            refs.append(locate(path))
            found.append(path)
        except HistobenchError as error:
            unreadable[path] = str(error)
    table = ContentHashes(memory)
    keys: dict[Path, bytes] = {}
    sources: dict[bytes, ImageRef] = {}
    try:
        results = _hashes(refs, pool, table)
    except BaseException:
        table.close()
        raise
    for path, ref, result in zip(found, refs, results, strict=True):
        if isinstance(result, Failure):
            unreadable[path] = result.reason
        else:
            keys[path] = result
            sources.setdefault(result, ref)
    return Inventory(keys, sources, unreadable, table)


def _hashes(refs: Sequence[ImageRef], pool: Pool, table: ContentHashes) -> list[bytes | Failure]:
    hashing = Hashing(pool)
    results: list[bytes | Failure | None] = []
    unknown: list[tuple[int, State]] = []
    for portion in table.known(refs):  # the workers have begun to hash while this looks at the next
        first = len(results)
        results += [key for _, key in portion]
        new = [(at, state) for at, (state, key) in enumerate(portion, first) if key is None]
        hashing.put([refs[at] for at, _ in new])
        unknown += new
    hashed = list(zip(unknown, hashing.results(), strict=True))
    for (at, _), key in hashed:
        results[at] = key
    table.remember((state, key) for (_, state), key in hashed if isinstance(key, bytes))
    return [result for result in results if result is not None]
