"""Which bytes each image is: hashes that are remembered, and the inventory of a dataset made of them."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from histobench.core.devices import collector_paused
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import ImageRef, Stamp, locate
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.features.loading.job import Failure, Hashed
from histobench.roi.features.loading.loader import Hashing, Pool

#: A file changed this shortly before it was hashed may change again within the clock's resolution.
SETTLED_NS = 2_000_000_000

#: Files asked for in one question.
AT_ONCE = 500

#: Files that are looked at before the workers get to hash them.
PORTION = 2048


class ContentHashes:
    """A table (file, offset) -> (stamp, sha256) on disk; none in a folder without write access."""

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

    def known(self, refs: Sequence[ImageRef]) -> Iterator[list[Hashed | None]]:
        """Portion by portion, stamp and hash of each image whose file is still what it was."""
        self._finish()
        names = [_full_name(ref.file) for ref in refs]
        kept = self._rows(list(dict.fromkeys(names)))
        for start in range(0, len(refs), PORTION):
            part = slice(start, start + PORTION)
            if not kept:  # nothing to compare with: the reader of a file takes its stamp
                yield [None] * len(refs[part])
                continue
            stamps = [stamp_of(ref) for ref in refs[part]]
            rows = (kept.get((name, ref.offset)) for name, ref in zip(names[part], refs[part], strict=True))
            yield [
                (stamp, row[4]) if stamp is not None and row is not None and row[:4] == stamp else None
                for stamp, row in zip(stamps, rows, strict=True)
            ]

    def remember(self, hashed: Iterable[tuple[ImageRef, Hashed]], *, began: int) -> None:
        """Keep hashes with the stamps taken before reading, which `began` at this time.

        Files changed a moment before that, or since, are not trusted. Writing goes on beside the caller's
        work, until `close`.
        """
        if self._base is None:
            return
        rows = [
            (_full_name(ref.file), ref.offset, *stamp, sha)
            for ref, (stamp, sha) in hashed
            if began - max(stamp[1], stamp[2]) > SETTLED_NS
        ]
        self._finish()
        self._writing = threading.Thread(target=_insert, name="histobench-hashes", args=(self._base, rows))
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
        return ref.stamp()
    except OSError:
        return None


@dataclass(frozen=True)
class HashInventory:
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


def distinct_paths(dataset: RoiDataset) -> list[Path]:
    """Every path of a dataset once, in the order in which they are hashed."""
    return list(dict.fromkeys(image.path for images in dataset.splits.values() for image in images))


@collector_paused()
def take_inventory(dataset: RoiDataset, pool: Pool, memory: Path) -> HashInventory:
    """Hash every image that has changed since it was last hashed."""
    paths = distinct_paths(dataset)
    places, refs, unreadable = _located(paths)
    table = ContentHashes(memory)
    keys: dict[Path, bytes] = {}
    sources: dict[bytes, ImageRef] = {}
    try:
        results = _hashes(refs, pool, table)
    except BaseException:
        table.close()
        raise
    for place, ref, result in zip(places, refs, results, strict=True):
        if isinstance(result, Failure):
            unreadable[paths[place]] = result.reason
        else:
            keys[paths[place]] = result
            sources.setdefault(result, ref)
    return HashInventory(keys, sources, unreadable, table)


def content_keys(paths: Sequence[Path], pool: Pool, memory: Path) -> list[bytes]:
    """The hash of every file; one that cannot be read is an error."""
    _, refs, unreadable = _located(paths)
    if unreadable:
        raise HistobenchError(next(iter(unreadable.values())))
    with closing(ContentHashes(memory)) as table:
        found = _hashes(refs, pool, table)
    for path, key in zip(paths, found, strict=True):
        if isinstance(key, Failure):
            raise HistobenchError(f"{path}: {key.reason}")
    return [key for key in found if not isinstance(key, Failure)]


def _located(paths: Sequence[Path]) -> tuple[Sequence[int], list[ImageRef], dict[Path, str]]:
    """Which images there are and where their bytes are, and why the others cannot be found."""
    places: list[int] = []
    refs: list[ImageRef] = []
    unreadable: dict[Path, str] = {}
    for place, path in enumerate(paths):
        try:
            refs.append(locate(path))
            places.append(place)
        except HistobenchError as error:
            unreadable[path] = str(error)
    return places if unreadable else range(len(paths)), refs, unreadable


def _hashes(refs: Sequence[ImageRef], pool: Pool, table: ContentHashes) -> list[bytes | Failure]:
    """The hash of each image, or why it cannot be read."""
    hashing = Hashing(pool)
    began = time.time_ns()
    results: list[bytes | Failure | None] = []
    unknown: list[int] = []
    for portion in table.known(refs):  # the workers have begun to hash while this looks at the next
        new = [at for at, known in enumerate(portion, len(results)) if known is None]
        results += [None if known is None else known[1] for known in portion]
        hashing.put([refs[at] for at in new])
        unknown += new
    found = hashing.results()
    for at, result in zip(unknown, found, strict=True):
        results[at] = result if isinstance(result, Failure) else result[1]
    new_ones = [
        (refs[at], result)
        for at, result in zip(unknown, found, strict=True)
        if not isinstance(result, Failure)
    ]
    table.remember(new_ones, began=began)
    return [result for result in results if result is not None]
