"""Features of single images on disk, by content: what has been computed once is never computed again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.atomic import create_json, write_json
from histobench.core.errors import HistobenchError
from histobench.core.reading import read_note
from histobench.roi.features.fingerprint import fingerprint
from histobench.roi.features.leftovers import remove_leftovers
from histobench.roi.features.row_shard import (
    DamagedShardError,
    read_keys,
    read_shard,
    remove_damaged,
    shard_files,
    write_shard,
)

#: Under this name a cache notes that its rows were discarded and made again.
GENERATION = "generation"


class RowCache:
    """The rows of one encoder: a folder of shards that are added to and never changed."""

    def __init__(self, root: Path, description: Mapping[str, Any]) -> None:
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
            with contextlib.suppress(OSError):  # somebody else's cache, or one that is mounted read-only
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
                try:
                    shard = read_keys(path)
                except DamagedShardError:
                    with contextlib.suppress(HistobenchError):
                        remove_damaged(path)  # its rows will be computed again
                    continue
                except HistobenchError:
                    if not path.exists():  # removed since it was listed
                        continue
                    raise
                self._remember(path, shard.keys, shard.bad)

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
                f"({error.strerror}); use --no-cache"
            ) from error
        self._shards, self.rows, self.bad = [], {}, {}
        self.decide(GENERATION, {"rows": generation})

    @property
    def generation(self) -> str:
        """Empty, unless rows were discarded: then features of the same description are other features."""
        return str(self.decision(GENERATION).get("rows", ""))

    @property
    def content(self) -> str:
        """A digest of all rows as they are."""
        return fingerprint(sorted(path.stem for path in self._shards))

    def decision(self, name: str) -> dict[str, Any]:
        """What was decided about this encoder in an earlier run, empty when nothing was."""
        return read_note(self.folder / f"{name}.json") or {}

    def decide_once(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """What is decided from now on: `value`, unless another process was first.

        Two that start together and find different things so go on with the same.
        """
        if not create_json(self.folder / f"{name}.json", dict(value)):
            return self.decision(name) or dict(value)
        return dict(value)

    def decide(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a decision down, so that a run that goes on decides in the same way."""
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
