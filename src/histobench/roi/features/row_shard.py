"""One shard of the cache: the keys and rows of a bounded number of images, in one file."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.reading import patiently, read_bytes, unreadable

KEY_BYTES = 32
SUFFIX = ".safetensors"
#: Which decoder found an image bad; another one may get on with it.
DECODER = f"pillow {PIL.__version__}"
#: The longest header that the format allows.
LARGEST_HEADER = 100_000_000


class DamagedShardError(HistobenchError):
    """A shard whose content is proved not to be what was written."""


@dataclass(frozen=True)
class RowShard:
    """`rows[i]` are the features of the image with the content hash `keys[i]`; `bad` could not be decoded."""

    keys: tuple[bytes, ...]
    rows: NDArray[np.float32] | None
    bad: Mapping[bytes, str]


def write_shard(
    folder: Path, keys: Sequence[bytes], rows: NDArray[np.float32], bad: Mapping[bytes, str]
) -> Path:
    """Write a shard under the hash of its content; it is there as a whole, or not at all."""
    from safetensors.numpy import save

    tensors = {
        "keys": np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES),
        "rows": np.ascontiguousarray(rows, dtype=np.float32),
    }
    reasons = {key.hex(): bad[key] for key in sorted(bad)}
    # One entry only: the order of several is not fixed by the format, and the name is a hash of the bytes.
    note = json.dumps({"decoder": DECODER, "bad": reasons}, sort_keys=True) if bad else ""
    data = save(tensors, metadata={"note": note})
    target = folder / f"{hashlib.sha256(data).hexdigest()}{SUFFIX}"
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)
    return target


def read_keys(path: Path) -> RowShard:
    """The keys of a shard without its rows.

    `DamagedShardError` only where the checksum proves it; what cannot be read now is another error.
    """
    try:
        return patiently(lambda: _head(path))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if is_intact(path):
            raise HistobenchError(f"the cache file {path} is of another version: {error}") from error
        raise DamagedShardError(f"the cache file {path} is damaged: {error}") from error


def read_shard(path: Path) -> RowShard:
    """A whole shard; damage is found, the file removed, and an error raised."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        data = read_bytes(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if hashlib.sha256(data).hexdigest() != path.stem:
        remove_damaged(path)
        raise HistobenchError(f"the cache file {path} was damaged and has been removed; run again")
    try:
        tensors = load(data)
        header = _header(data[8 : 8 + _header_size(data[:8])])
        return replace(_shard(tensors["keys"].tobytes(), header), rows=tensors["rows"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise HistobenchError(f"the cache file {path} is of another version: {error}") from error


def is_intact(path: Path) -> bool:
    """Whether the content still is what the name says; a file that cannot be read now is an error."""

    def digest() -> str:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    try:
        return patiently(digest) == path.stem
    except OSError as error:
        raise unreadable(path, error) from error


def remove_damaged(path: Path) -> None:
    """Remove a shard that was seen to be damaged, unless another machine has just written it anew."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        os.rename(path, aside)
        if is_intact(aside):
            os.replace(aside, path)
        else:
            aside.unlink(missing_ok=True)
    except FileNotFoundError:
        return  # someone else was quicker
    except OSError as error:
        raise HistobenchError(
            f"the cache file {path} is damaged and cannot be removed ({error.strerror}); remove it, or "
            "set HISTOBENCH_CACHE to another folder"
        ) from error


def shard_files(folder: Path) -> list[Path]:
    """The shards in a folder, in a fixed order; files that are being written are not among them."""
    try:
        names = patiently(lambda: os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(folder / name for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def _head(path: Path) -> RowShard:
    """Keys and notes by plain reads of the format's header: libraries tell no error of the disk apart."""
    with path.open("rb") as handle:
        size = _header_size(handle.read(8))
        header = _header(handle.read(size))
        first, end = header["keys"]["data_offsets"]
        handle.seek(8 + size + first)
        data = handle.read(end - first)
    if len(data) != end - first or (end - first) % KEY_BYTES:
        raise ValueError("it is cut short")
    return _shard(data, header)


def _header_size(data: bytes) -> int:
    size = int.from_bytes(data, "little")
    if len(data) != 8 or size > LARGEST_HEADER:
        raise ValueError("it does not begin as such a file does")
    return size


def _header(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data)
    return content


def _shard(data: bytes, header: Mapping[str, Any]) -> RowShard:
    note = json.loads((header.get("__metadata__") or {}).get("note") or "{}")
    bad = note.get("bad", {}) if note.get("decoder") == DECODER else {}
    return RowShard(
        keys=tuple(data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)),
        rows=None,
        bad={bytes.fromhex(key): str(why) for key, why in bad.items()},
    )
