"""What is in the cache: the encoders with their rows, and the feature sets that were written from them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_note, write_json
from histobench.roi.features.cache.row_cache import is_intact, read_keys, shard_files


@dataclass(frozen=True)
class CachedEncoder:
    """The rows of one encoder under one transform and precision."""

    fingerprint: str
    folder: Path
    encoder: str
    size: int | None
    precision: str
    images: int
    nbytes: int
    #: Seconds since the epoch.
    last_used: float
    #: "dataset/split" of the feature files that were written from these rows.
    sets: tuple[str, ...] = ()


def record_set(root: Path, name: str, metadata: Mapping[str, Any], path: Path, images: int) -> None:
    """Note that a feature set was written, and where to; a cache that cannot be written to has no note."""
    keys = ("dataset", "split", "encoder", "size", "precision", "encoder_fingerprint")
    with contextlib.suppress(HistobenchError):
        write_json(
            root / "sets" / f"{name}.json",
            {**{key: metadata[key] for key in keys}, "images": images, "file": str(path.resolve())},
        )


def cached_encoders(root: Path) -> list[CachedEncoder]:
    sets: dict[str, list[str]] = {}
    for file in sorted((root / "sets").glob("*.json")):
        note = read_note(file) or {}
        sets.setdefault(str(note.get("encoder_fingerprint")), []).append(
            f"{note.get('dataset')}/{note.get('split')}"
        )
    folders = [note.parent for note in sorted((root / "features").glob("*/encoder.json"))]
    found = (_cached_encoder(folder, sets.get(folder.name, [])) for folder in folders)
    return sorted(found, key=lambda item: -item.last_used)


def select(entries: Sequence[CachedEncoder], names: Sequence[str]) -> list[CachedEncoder]:
    """The entries that are meant: by encoder name or by the beginning of a fingerprint."""
    chosen: list[CachedEncoder] = []
    for name in names:
        matches = [item for item in entries if item.encoder == name or item.fingerprint.startswith(name)]
        if not matches:
            known = ", ".join(sorted({item.encoder for item in entries})) or "the cache is empty"
            raise HistobenchError(f"nothing in the cache is called {name!r}; there is: {known}")
        chosen += [item for item in matches if item not in chosen]
    return chosen


def remove(root: Path, entries: Sequence[CachedEncoder]) -> int:
    """Delete rows and the notes of their feature sets (never the feature files); gives the bytes freed."""
    gone = {item.fingerprint for item in entries}
    for file in (root / "sets").glob("*.json"):
        if (read_note(file) or {}).get("encoder_fingerprint") in gone:
            file.unlink(missing_ok=True)
    for item in entries:
        shutil.rmtree(item.folder)
    return sum(item.nbytes for item in entries)


def damaged_shards(entries: Sequence[CachedEncoder]) -> list[Path]:
    files = (path for item in entries for path in shard_files(item.folder))
    return [path for path in files if path.exists() and not is_intact(path)]


def _cached_encoder(folder: Path, sets: Sequence[str]) -> CachedEncoder:
    description = read_note(folder / "encoder.json") or {}
    transform = description.get("transform")
    images = 0
    for path in shard_files(folder):
        with contextlib.suppress(HistobenchError, OSError):  # `verify` is there to find it
            shard = read_keys(path)
            images += len(shard.keys) if shard else 0
    return CachedEncoder(
        fingerprint=folder.name,
        folder=folder,
        # A user's own encoder is called by its file and class, wherever the file is.
        encoder=str(description.get("encoder", "?")).rpartition("/")[2],
        size=transform.get("crop") if isinstance(transform, dict) else None,
        precision=str(description.get("precision", "?")),
        images=images,
        nbytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        last_used=(folder / "encoder.json").stat().st_mtime,
        sets=tuple(sorted(set(sets))),
    )
