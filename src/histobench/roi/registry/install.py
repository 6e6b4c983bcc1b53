"""A public dataset on this disk: fetched, checked, listed as CSV, found again by its name, removed."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from histobench.core.claim import exclusive
from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text, write_json, write_text
from histobench.core.folders import cache_dir
from histobench.core.http import Progress
from histobench.core.plain_data import parse_json
from histobench.core.text import csv_text
from histobench.roi.registry.dataset_download import Fetched, Fetcher
from histobench.roi.registry.dataset_entry import PublicDataset, find
from histobench.roi.registry.peer_splits import drawn
from histobench.roi.registry.table_rows import Row, read_rows

#: Says that someone is fetching into this folder; the next one waits and finds the work done.
_CLAIM = ".fetching.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Installed:
    """A dataset that can be used: its table, its class map, and what to know about it."""

    name: str
    folder: Path
    table: Path
    classes_file: Path
    notes: tuple[str, ...]


def data_folder() -> Path:
    """`HISTOBENCH_DATA`, or `datasets` in the cache folder."""
    given = os.environ.get("HISTOBENCH_DATA")
    return Path(given).expanduser() if given else cache_dir() / "datasets"


def get(
    name: str,
    *,
    to: str | Path | None = None,
    progress: Progress | None = None,
    pause: float = 1.0,
    accept: Sequence[str] = (),
) -> Installed:
    """Fetch, check and list a dataset; what is there already is only checked. `bach@eva` adds that split.

    `accept` are checksums that are taken instead of the published ones; that is noted with the dataset.
    Files that come by form are looked for in `downloads/` and checked in the same way.
    """
    entry, split = find(name)
    folder = _folder_of(entry, to)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = partial(_log.warning, "another process is fetching %s; waiting for it", name)
    with exclusive(folder / _CLAIM, on_wait=waiting):
        _install(entry, folder, Fetcher(folder / "downloads", entry.name, progress, pause, accept))
    if to is not None:
        write_json(data_folder() / f"{entry.name}.json", {"folder": str(folder.resolve())})
    return require(f"{entry.name}@{split}" if split else entry.name)


def _install(entry: PublicDataset, folder: Path, fetcher: Fetcher) -> None:
    downloads = fetcher.folder
    if entry.access == "form":
        fetched = _placed_by_hand(entry, fetcher)
    else:
        wanted = [file for file in entry.files if file.url or (downloads / file.name).exists()]
        fetched = fetcher.fetch_all(wanted)
    rows = read_rows(entry, folder)
    notes = [*entry.unconfirmed, *_count_notes(entry, rows), *_checksum_notes(fetched)]
    write_text(
        folder / f"{entry.name}.txt", "".join(f"{label},{i}\n" for i, label in enumerate(entry.classes))
    )
    _write_table(folder / f"{entry.name}.csv", rows)
    lost: dict[str, str] = {}
    for peer in entry.splits.values():
        table = folder / f"{entry.name}@{peer.name}.csv"
        try:
            _write_table(table, drawn(entry, peer, rows, folder))
        except HistobenchError as error:
            # The images are right; what another project drew from them is not what it published.
            table.unlink(missing_ok=True)
            lost[peer.name] = str(error)
            notes.append(f"the split is not available: {error}")
    write_json(folder / "dataset.json", {**_record(entry, fetched, rows, notes), "lost_splits": lost})


def locate(name: str) -> Installed | None:
    """The dataset on this disk, None if it has not been fetched."""
    entry, split = find(name)
    folder = _folder_of(entry, None)
    record = _read_record(folder)
    full = f"{entry.name}@{split}" if split else entry.name
    table = folder / f"{full}.csv"
    if record is None or not table.exists():
        return None
    return Installed(full, folder, table, folder / f"{entry.name}.txt", tuple(record.get("notes", ())))


def accepted_files(table: Path) -> list[str]:
    """Files of the dataset of a table that were accepted with another checksum than published."""
    record = _read_record(table.parent) or {}
    files = record.get("files") if table.stem.partition("@")[0] == record.get("dataset") else None
    return [f"{file['name']} sha256 {file['sha256']}" for file in files or () if file.get("accepted")]


def require(name: str, *, recommended: bool = False) -> Installed:
    """The dataset on this disk, or an error; with `recommended` a name may mean its recommended split."""
    entry, split = find(name)
    if recommended and split is None and entry.recommended:
        name = f"{entry.name}@{entry.recommended}"
    if found := locate(name):
        return found
    if reason := (_read_record(_folder_of(entry, None)) or {}).get("lost_splits", {}).get(find(name)[1]):
        raise HistobenchError(f"{name} is not available: {reason}")
    raise HistobenchError(
        f"{name} is not on this machine; fetch it ({entry.size_text}) with: histobench data get {entry.name}"
    )


def remove(name: str) -> tuple[Path, int]:
    """Delete a dataset's folder; returns it and the bytes that it took. Only what `get` made is deleted."""
    entry, _ = find(name)
    folder = _folder_of(entry, None)
    if _read_record(folder) is None and not (folder / "downloads").is_dir():
        raise HistobenchError(f"{entry.name} is not on this machine")
    patterns = ["downloads/**/*", "images/**/*", "dataset.json", _CLAIM]
    patterns += [f"{entry.name}.*", f"{entry.name}@*.csv"]
    files = [path for pattern in patterns for path in folder.glob(pattern) if not path.is_dir()]
    size = sum(path.lstat().st_size for path in files)
    for path in files:
        path.unlink()
    for part in ("downloads", "images"):
        shutil.rmtree(folder / part, ignore_errors=True)
    (data_folder() / f"{entry.name}.json").unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return folder, size


def by_hand(entry: PublicDataset, folder: Path) -> str:
    """What a person has to do for files that are not openly downloadable."""
    files = ", ".join(file.name for file in entry.files)
    how = entry.instructions or f"request access at {entry.homepage}"
    return (
        f"{entry.name} is not openly downloadable: {how}; put {files} into {folder}, then run again:"
        f" histobench data get {entry.name}"
    )


def _folder_of(entry: PublicDataset, to: str | Path | None) -> Path:
    if to is not None:
        return Path(to).expanduser() / entry.name
    elsewhere = data_folder() / f"{entry.name}.json"
    if elsewhere.is_file():
        return Path(parse_json(read_plain_text(elsewhere))["folder"])
    return data_folder() / entry.name


def _placed_by_hand(entry: PublicDataset, fetcher: Fetcher) -> list[Fetched]:
    downloads = fetcher.folder
    downloads.mkdir(parents=True, exist_ok=True)
    # A name may be a pattern: the parts of an archive are not always known beforehand.
    found = {file: sorted(downloads.glob(file.name)) for file in entry.files}
    if not all(found.values()):
        raise HistobenchError(by_hand(entry, downloads))
    placed = [(file, path) for file, paths in found.items() for path in paths if path.is_file()]
    return [fetcher.check(path, file, keep=True) for file, path in placed]


def _count_notes(entry: PublicDataset, rows: Sequence[Row]) -> list[str]:
    """Counts are compared with the published ones; where these are sure, another count is an error."""
    found = Counter(row.split or "all" for row in rows)
    found["all"] = len(rows)
    notes = []
    for name, wanted in entry.counts.items():
        if found[name] == wanted:
            continue
        message = f"{entry.name}: {found[name]:,} images ({name}), but {wanted:,} are published"
        if entry.counts_confidence != "C":
            raise HistobenchError(f"{message}; is the archive a different version, or truncated?")
        notes.append(f"{message}; that number is not confirmed")
    absent = [label for label in entry.classes if not any(row.label == label for row in rows)]
    if absent:
        raise HistobenchError(f"{entry.name}: no image of {', '.join(absent)} was found")
    return notes


def _checksum_notes(fetched: Sequence[Fetched]) -> list[str]:
    return [
        f"{item.path.name} differs from the published checksum and was accepted: sha256 {item.sha256}"
        if item.accepted
        else f"no checksum of {item.path.name} is published; here it has sha256 {item.sha256}"
        for item in fetched
        if not item.verified
    ]


def _write_table(target: Path, rows: Sequence[Row]) -> None:
    """The long CSV that every verb reads: paths relative to it, columns only where something is known."""
    known = [name for name in ("split", "group") if any(getattr(row, name) for row in rows)]
    sites = sorted({name for row in rows for name in row.sites})
    table = [
        [
            *(row.path, row.label),
            *(getattr(row, name) or "" for name in known),
            *(row.sites.get(name, "") for name in sites),
        ]
        for row in rows
    ]
    write_text(target, csv_text(["image_path", "label", *known, *sites], table))


def _record(
    entry: PublicDataset, fetched: Sequence[Fetched], rows: Sequence[Row], notes: Sequence[str]
) -> dict[str, Any]:
    kept = ("bytes", "md5", "sha256", "verified")
    return {
        "dataset": entry.name,
        "title": entry.title,
        "homepage": entry.homepage,
        "licence": entry.license,
        "citation": entry.citation,
        "files": [
            {"name": item.path.name, **{name: getattr(item, name) for name in kept}}
            | ({"accepted": True} if item.accepted else {})
            for item in fetched
        ],
        "images": dict(Counter(row.split or "all" for row in rows)),
        "groups": len({row.group for row in rows if row.group}),
        "notes": list(notes),
    }


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        value = parse_json(read_plain_text(folder / "dataset.json"))
    except (OSError, ValueError):  # beside a table of the user's own it may be anything
        return None
    return value if isinstance(value, dict) else None
