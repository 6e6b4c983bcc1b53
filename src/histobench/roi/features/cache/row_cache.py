"""The row cache: features of one encoder by the content of the image, in shards that are never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import (
    atomic_path,
    create_json,
    names_in,
    patiently,
    read_bytes,
    read_note,
    write_json,
)
from histobench.core.plain_data import parse_json
from histobench.roi.features.fingerprint import fingerprint

#: A file that is being written is younger than this.
ABANDONED_SECONDS = 3600.0


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Delete half-written files (of `name`, or of anything) that no one has touched for an hour."""
    limit = time.time() - ABANDONED_SECONDS
    paths: list[Path] = []
    with contextlib.suppress(OSError):  # tidying up can wait
        paths = list(folder.iterdir())
    for path in paths:
        if path.name.startswith(f".{name}") and path.name.endswith(".tmp"):
            with contextlib.suppress(OSError):  # another process may be quicker
                if path.stat().st_mtime < limit:
                    path.unlink()


KEY_BYTES = 32
SUFFIX = ".safetensors"
#: Which decoder found an image bad; another one may get on with it.
DECODER = f"pillow {PIL.__version__}"
#: The longest header that the format allows.
LARGEST_HEADER = 100_000_000


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


def read_keys(path: Path) -> RowShard | None:
    """The keys of a shard without its rows; None where the checksum proves it damaged."""
    try:
        return patiently(lambda: _head(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if is_intact(path):
            raise HistobenchError(f"the cache file {path} is of another version: {error}") from error
        return None


def read_shard(path: Path) -> RowShard:
    """A whole shard; damage is found, the file removed, and an error raised."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = read_bytes(path)
    if hashlib.sha256(data).hexdigest() != path.stem:
        remove_damaged(path)
        raise HistobenchError(f"the cache file {path} was damaged and has been removed; run again")
    try:
        tensors = load(data)
        header = parse_json(data[8 : 8 + _header_size(data[:8])])
        return replace(_shard(tensors["keys"].tobytes(), header), rows=tensors["rows"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise HistobenchError(f"the cache file {path} is of another version: {error}") from error


def is_intact(path: Path) -> bool:
    """Whether the content still is what the name says; a file that cannot be read now is an error."""
    return hashlib.sha256(read_bytes(path)).hexdigest() == path.stem


def remove_damaged(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HistobenchError(
            f"the cache file {path} is damaged and cannot be removed ({error.strerror}); remove it, or "
            "set HISTOBENCH_CACHE to another folder"
        ) from error


def shard_files(folder: Path) -> list[Path]:
    """The shards in a folder, in a fixed order; files that are being written are not among them."""
    return [folder / name for name in names_in(folder, SUFFIX) if not name.startswith(".")]


def _head(path: Path) -> RowShard:
    """Keys and notes by plain reads of the format's header: libraries tell no error of the disk apart."""
    with open(path, "rb") as handle:
        size = _header_size(handle.read(8))
        header = parse_json(handle.read(size))
        first, end = header["keys"]["data_offsets"]
        handle.seek(8 + size + first)
        data = handle.read(end - first)
    if len(data) != end - first or (end - first) % KEY_BYTES:
        raise ValueError("it is truncated")
    return _shard(data, header)


def _header_size(data: bytes) -> int:
    size = int.from_bytes(data, "little")
    if len(data) != 8 or size > LARGEST_HEADER:
        raise ValueError("it does not start like a cache file")
    return size


def _shard(data: bytes, header: Mapping[str, Any]) -> RowShard:
    note = parse_json((header.get("__metadata__") or {}).get("note") or "{}")
    bad = note.get("bad", {}) if note.get("decoder") == DECODER else {}
    return RowShard(
        keys=tuple(data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)),
        rows=None,
        bad={bytes.fromhex(key): str(why) for key, why in bad.items()},
    )


#: Under this name a cache notes that its rows were discarded and made again.
GENERATION = "generation"


def is_cached(root: Path, description: Mapping[str, Any]) -> bool:
    return (root / "features" / fingerprint(description) / "encoder.json").is_file()


class RowCache:
    """The rows of one encoder: a folder of shards that are added to and never changed."""

    def __init__(self, root: Path, description: Mapping[str, Any]) -> None:
        self.root = root
        self.description = dict(description)
        self.fingerprint = fingerprint(self.description)
        self.folder = root / "features" / self.fingerprint
        #: key -> (position of the shard, row)
        self.rows: dict[bytes, tuple[int, int]] = {}
        #: key -> why it could not be decoded
        self.bad: dict[bytes, str] = {}
        self._shards: list[Path] = []
        if not (self.folder / "encoder.json").is_file():
            write_json(self.folder / "encoder.json", self.description)
        else:
            with contextlib.suppress(OSError):  # someone else's cache, or one that is mounted read-only
                os.utime(self.folder / "encoder.json")  # when it was last used
        remove_leftovers(self.folder)
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self.rows or key in self.bad

    def add(self, keys: Sequence[bytes], rows: NDArray[np.float32], bad: Mapping[bytes, str]) -> None:
        """Write a shard; when this returns, its rows survive a kill."""
        self._remember(write_shard(self.folder, keys, rows, bad), keys, bad)

    def refresh(self) -> None:
        """Take note of the shards on disk, those of other processes included."""
        known = set(self._shards)
        for path in shard_files(self.folder):
            if path not in known:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    if shard := read_keys(path):
                        self._remember(path, shard.keys, shard.bad)
                        continue
                    with contextlib.suppress(HistobenchError):
                        remove_damaged(path)  # its rows will be computed again

    def gather(self, keys: Sequence[bytes], out: NDArray[np.float32]) -> None:
        """Copy the rows of `keys` to `out`, reading each shard once."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for position, key in enumerate(keys):
            shard, row = self.rows[key]
            wanted.setdefault(shard, []).append((position, row))
        for shard, pairs in sorted(wanted.items()):
            targets, sources = np.array(pairs).T
            rows = read_shard(self._shards[shard]).rows
            assert rows is not None
            out[targets] = rows[sources]

    def files_of(self, keys: Sequence[bytes]) -> set[Path]:
        return {self._shards[self.rows[key][0]] for key in keys if key in self.rows}

    def discard(self, generation: str) -> None:
        """Remove every row and decision; features from now on are of another `generation`."""
        try:
            for path in self._shards:
                path.unlink(missing_ok=True)
            for path in self.folder.rglob("*.json"):
                if path.name != "encoder.json":
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise HistobenchError(
                f"the cached features in {self.folder} are out of date and cannot be removed "
                f"({error.strerror}); use `no_cache`"
            ) from error
        self._shards, self.rows, self.bad = [], {}, {}
        self.decide(GENERATION, {"rows": generation})

    @property
    def generation(self) -> str:
        """Empty, unless rows were discarded: then features of the same description are other features."""
        return str(self.decision(GENERATION).get("rows", ""))

    @property
    def content(self) -> str:
        return fingerprint(sorted(path.stem for path in self._shards))

    def decision(self, name: str) -> dict[str, Any]:
        """What was decided about this encoder in an earlier run, empty when nothing was."""
        return read_note(self.folder / f"{name}.json") or {}

    def decide_once(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """What is decided from now on: `value`, unless another process was first."""
        is_new = create_json(self.folder / f"{name}.json", dict(value))
        return dict(value) if is_new else self.decision(name) or dict(value)

    def decide(self, name: str, value: Mapping[str, Any]) -> None:
        write_json(self.folder / f"{name}.json", dict(value))

    def _remember(self, path: Path, keys: Sequence[bytes], bad: Mapping[bytes, str]) -> None:
        shard = len(self._shards)
        self._shards.append(path)
        for row, key in enumerate(keys):
            known = self.rows.get(key)
            # Two runs at once may both have computed an image: all readers take the same of the two.
            if known is None or path.name < self._shards[known[0]].name:
                self.rows[key] = (shard, row)
        self.bad.update(bad)


#: Shards that may wait for the disk before the computation does.
WAITING = 4


class ShardWriter:
    """A thread that adds shards to caches; an error in it is raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="histobench-write")
        self._writing: deque[Future[None]] = deque()

    def put(
        self, cache: RowCache, keys: Sequence[bytes], rows: NDArray[np.float32], bad: Mapping[bytes, str]
    ) -> None:
        while len(self._writing) > WAITING:
            self._writing.popleft().result()
        self.check()
        self._writing.append(self._thread.submit(cache.add, keys, rows, bad))

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._thread.shutdown()
        self.check()

    def check(self) -> None:
        for future in self._writing:
            if future.done():
                future.result()
