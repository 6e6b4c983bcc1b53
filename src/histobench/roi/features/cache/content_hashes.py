"""Which bytes each image is: hashes that are remembered, and the inventory of a dataset made of them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from histobench.core.devices import collector_paused
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import ImageRef, Stamp, locate
from histobench.roi.data.image_table import ImageTable
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset, RoiImage
from histobench.roi.features.cache.row_cache import KEY_BYTES
from histobench.roi.features.loading.job import Failure, Hashed
from histobench.roi.features.loading.loader import Hashing, Pool

#: A file changed this shortly before it was hashed may change again within the clock's resolution.
SETTLED_NS = 2_000_000_000

#: Files asked for in one question.
AT_ONCE = 500

#: Files that are looked at before the workers get to hash them.
PORTION = 2048
#: The hash of an image that cannot be read.
_UNREADABLE = bytes(KEY_BYTES)


class ContentHashes:
    """A table (file, offset) -> (stamp, sha256) on disk; none in a folder without write access."""

    def __init__(self, folder: Path) -> None:
        self._base: sqlite3.Connection | None = None
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
        """Keep hashes with stamps taken before reading; files that changed just before are not trusted."""
        if self._base is None:
            return
        rows = [
            (_full_name(ref.file), ref.offset, *stamp, sha)
            for ref, (stamp, sha) in hashed
            if began - max(stamp[1], stamp[2]) > SETTLED_NS
        ]
        with suppress(sqlite3.Error), self._base:  # a full disk costs time here, not correctness
            self._base.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
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


def _full_name(file: str) -> str:
    if file.startswith("/") and "/." not in file and "//" not in file:
        return file  # it is one already, which `abspath` takes much longer to find out
    return os.path.abspath(file)


def stamp_of(ref: ImageRef) -> Stamp | None:
    try:
        return ref.stamp()
    except OSError:
        return None


#: Images that are looked at together: what is known of each takes a kilobyte until its hash is noted.
LOOKED_AT = 1 << 17


class Keys(Sequence[bytes]):
    """Content hashes in one piece of memory, an array [n, 32] of bytes; a slice is a view."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Keys: ...
    def __getitem__(self, index: int | slice) -> bytes | Keys:
        part = self.data[index]
        return Keys(part) if isinstance(index, slice) else part.tobytes()

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), PORTION):
            part = self.data[start : start + PORTION].tobytes()
            yield from (part[at : at + KEY_BYTES] for at in range(0, len(part), KEY_BYTES))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and np.array_equal(self.data, other.data)

    def __hash__(self) -> int:
        return hash(self.data.tobytes())


class Order:
    """Where keys are in their own order; eight bytes for each: its first bits, then its place."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._bits = keys, len(keys).bit_length()
        self._packed = np.ascontiguousarray(keys.data[:, :8]).view(">u8").ravel().astype(np.uint64)
        self._packed >>= np.uint64(self._bits)
        self._packed <<= np.uint64(self._bits)
        self._packed |= np.arange(len(keys), dtype=np.uint64)
        self._packed.sort()

    def places(self, at: slice | NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.asarray(self._packed[at] & np.uint64((1 << self._bits) - 1))

    def alike(self) -> NDArray[np.uint64]:
        """The places of keys that begin like another one; few do by chance."""
        firsts = self._packed >> np.uint64(self._bits)
        same = np.zeros(len(firsts) + 1, np.bool_)
        same[1:-1] = firsts[1:] == firsts[:-1]
        return self.places(same[1:] | same[:-1])

    def find(self, key: bytes) -> int | None:
        first = int.from_bytes(key[:8], "big") >> self._bits
        at = int(self._packed.searchsorted(np.uint64(first << self._bits)))
        while at < len(self._packed) and int(self._packed[at]) >> self._bits == first:
            place = int(self._packed[at]) & ((1 << self._bits) - 1)
            if self._keys[place] == key:
                return place
            at += 1
        return None


@dataclass(frozen=True)
class Contents:
    """The content hash of every image of a dataset, in its order."""

    dataset: RoiDataset
    keys: Keys

    def of(self, split: str) -> Iterator[tuple[RoiImage, bytes | None]]:
        """Yield the images of a split with their hashes, None for one that cannot be read."""
        start = sum(len(self.dataset.splits.get(each, ())) for each in SPLITS[: SPLITS.index(split)])
        images = self.dataset.splits.get(split, ())
        for image, key in zip(images, self.keys[start : start + len(images)], strict=True):
            yield image, None if key == _UNREADABLE else key

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        return np.asarray(self.keys.data.any(axis=1))

    @cached_property
    def copies(self) -> list[list[int]]:
        """The numbers of readable images with one content, where several have it."""
        found: dict[bytes, list[int]] = {}
        for row in Order(self.keys).alike().tolist():
            if self.readable[row]:
                found.setdefault(self.keys[row], []).append(row)
        return sorted(rows for rows in found.values() if len(rows) > 1)


class Refs(Mapping[bytes, ImageRef]):
    """Where the bytes with a content hash are: in the first image of a dataset that has them."""

    def __init__(self, contents: Contents, known: Mapping[bytes, ImageRef] | None = None) -> None:
        self._known = known or {}
        self._images = [contents.dataset.splits.get(split, ()) for split in SPLITS]
        again = [row for copies in contents.copies for row in copies[1:]]
        #: Every content once, in the order of the dataset, and the images that have them if not all are such.
        self.distinct = contents.keys
        self._rows: NDArray[np.int32] | None = None
        if again or not contents.readable.all():
            self._rows = np.setdiff1d(np.flatnonzero(contents.readable), again).astype(np.int32)
            self.distinct = Keys(contents.keys.data[self._rows])
        self._order = Order(self.distinct)

    def __len__(self) -> int:
        return len(self.distinct)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.distinct)

    def __getitem__(self, key: bytes) -> ImageRef:
        if key in self._known:
            return self._known[key]
        if (place := self._order.find(key)) is None:
            raise KeyError(key)
        return locate(self._path(place if self._rows is None else int(self._rows[place])))

    def in_order(self) -> Iterator[bytes]:
        """Yield pieces of all contents in their own order."""
        for start in range(0, len(self), PORTION):
            yield self.distinct.data[self._order.places(slice(start, start + PORTION))].tobytes()

    def _path(self, row: int) -> Path:
        for images in self._images:
            if row < len(images):
                return images.path(row) if isinstance(images, ImageTable) else images[row].path
            row -= len(images)
        raise IndexError(row)


@dataclass(frozen=True)
class HashInventory:
    """What each image of a dataset is, and where the bytes with a content hash are."""

    contents: Contents
    refs: Refs
    unreadable: Mapping[Path, str]
    hashes: ContentHashes

    def close(self) -> None:
        self.hashes.close()


@collector_paused()
def take_inventory(dataset: RoiDataset, pool: Pool, memory: Path) -> HashInventory:
    """Hash every image that has changed since it was last hashed."""
    table, unreadable = ContentHashes(memory), dict[Path, str]()
    known: dict[bytes, ImageRef] = {}
    data = np.zeros((sum(len(dataset.splits.get(split, ())) for split in SPLITS), KEY_BYTES), np.uint8)
    every = (image.path for split in SPLITS for image in dataset.splits.get(split, ()))
    done = 0
    try:
        while paths := list(islice(every, LOOKED_AT)):
            places, refs, lost = _located(paths)
            unreadable |= lost
            found: list[bytes] = [_UNREADABLE] * len(paths)
            for place, ref, result in zip(places, refs, _hashes(refs, pool, table), strict=True):
                if isinstance(result, Failure):
                    unreadable[paths[place]] = result.reason
                else:
                    found[place] = result
                    if len(data) <= LOOKED_AT:
                        known.setdefault(result, ref)
            data[done : done + len(paths)] = np.frombuffer(b"".join(found), np.uint8).reshape(-1, KEY_BYTES)
            done += len(paths)
    except BaseException:
        table.close()
        raise
    contents = Contents(dataset, Keys(data))
    return HashInventory(contents, Refs(contents, known), unreadable, table)


def content_keys(paths: Sequence[Path], pool: Pool, memory: Path) -> list[bytes]:
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
    new_ones = []
    for at, result in zip(unknown, found, strict=True):
        results[at] = result if isinstance(result, Failure) else result[1]
        if not isinstance(result, Failure):
            new_ones.append((refs[at], result))
    table.remember(new_ones, began=began)
    return [result for result in results if result is not None]
