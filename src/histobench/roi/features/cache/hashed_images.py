"""What another process has found out about images: per image the stamp of its file and its hash, 64 bytes.

A file of them is named by the list of images that it is about and by its own content, so that it is never
changed and a reader sees whether it is whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histobench.core.files import atomic_path, read_bytes
from histobench.roi.data.image_ref import Stamp
from histobench.roi.features.loading.job import Hashed

ENDING = ".hashes"
_STAMP = struct.Struct("<4Q")
_WORD = (1 << 64) - 1  # times before 1970 are negative, and inodes may need the last bit
_UNKNOWN = bytes(32)
_ROW = 64


class HashedImages:
    """Stamps and hashes of images in the order of a list; of some nothing may be known."""

    def __init__(self, rows: NDArray[np.void]) -> None:
        self._rows = rows

    @classmethod
    def nothing(cls, images: int) -> HashedImages:
        """So many images of which nothing is known."""
        return cls(np.zeros(images, dtype=f"V{_ROW}"))

    @classmethod
    def of(cls, found: list[Hashed | None]) -> HashedImages:
        """The stamp that each file had before it was read, and the hash of what was read; or None."""
        rows = (bytes(_ROW) if item is None else _packed(item[0]) + item[1] for item in found)
        return cls(np.frombuffer(b"".join(rows), dtype=f"V{_ROW}"))

    def __getitem__(self, some: slice | Sequence[int]) -> HashedImages:
        if isinstance(some, range):
            some = slice(some.start, some.stop, some.step)
        return HashedImages(self._rows[some if isinstance(some, slice) else np.asarray(some, dtype=np.int64)])

    def put(self, places: Sequence[int], other: HashedImages) -> None:
        """Take over what is known of the images at these places."""
        self._rows[np.asarray(places, dtype=np.int64)] = other._rows

    def unknown(self) -> list[int]:
        """The images of which nothing is known."""
        words: NDArray[np.uint64] = np.ascontiguousarray(self._rows).view("<u8").reshape(-1, _ROW // 8)
        return [int(place) for place in np.flatnonzero(~words[:, 4:].any(1))]

    def found(self, stamps: Sequence[Stamp | None]) -> list[bytes | None]:
        """Per image its hash, if its file has the same stamp now."""
        data = self._rows.tobytes()
        keys: list[bytes | None] = []
        for place, stamp in zip(range(0, len(data), _ROW), stamps, strict=True):
            key = data[place + 32 : place + _ROW]
            known = stamp is not None and key != _UNKNOWN and data[place : place + 32] == _packed(stamp)
            keys.append(key if known else None)
        return keys

    def write(self, folder: Path, images: str) -> Path:
        """Write them down; `images` is the name of the list."""
        data = self._rows.tobytes()
        path = folder / f"{images}-{_digest(data)}{ENDING}"
        with atomic_path(path) as temporary:
            temporary.write_bytes(data)
        return path

    @classmethod
    def read(cls, path: Path, images: int) -> HashedImages | None:
        """What `write` wrote; None where it is gone, damaged, or about another number of images."""
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            return None
        whole = path.name.endswith(f"-{_digest(data)}{ENDING}") and len(data) == _ROW * images
        return cls(np.frombuffer(data, dtype=f"V{_ROW}")) if whole else None


def _packed(stamp: Stamp) -> bytes:
    return _STAMP.pack(*(value & _WORD for value in stamp))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
