"""One shard of the cache: the keys and rows of a bounded number of images, in one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError

KEY_BYTES = 32
SUFFIX = ".safetensors"
#: Which decoder found an image bad; another one may get on with it.
DECODER = f"pillow {PIL.__version__}"


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
    """The keys of a shard without its rows."""
    return _read(path, with_rows=False)


def read_shard(path: Path) -> RowShard:
    """A whole shard; damage is found, the file removed, and an error raised."""
    if not is_intact(path):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HistobenchError(
                f"the cache file {path} is damaged and cannot be removed ({error.strerror}); remove it, or "
                "set HISTOBENCH_CACHE to another folder"
            ) from error
        raise HistobenchError(f"the cache file {path} was damaged and has been removed; run again")
    return _read(path, with_rows=True)


def is_intact(path: Path) -> bool:
    """Whether the content still is what the name says."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest() == path.stem
    except OSError:
        return False


def shard_files(folder: Path) -> list[Path]:
    """The shards in a folder, in a fixed order; files that are being written are not among them."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


def _read(path: Path, *, with_rows: bool) -> RowShard:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as shard:
            keys: NDArray[Any] = shard.get_tensor("keys")
            rows = shard.get_tensor("rows") if with_rows else None
            note = json.loads((shard.metadata() or {}).get("note") or "{}")
    except (OSError, SafetensorError, ValueError) as error:
        raise HistobenchError(f"the cache file {path} is damaged: {error}") from error
    data = keys.tobytes()
    bad = note.get("bad", {}) if note.get("decoder") == DECODER else {}
    return RowShard(
        keys=tuple(data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)),
        rows=rows,
        bad={bytes.fromhex(key): str(why) for key, why in bad.items()},
    )
