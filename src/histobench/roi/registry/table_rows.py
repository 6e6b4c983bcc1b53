"""From unpacked files to labelled rows, by the layout that an entry gives."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, read_bytes, read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.registry.dataset_entry import PublicDataset
from histobench.roi.registry.unpack import (
    Tree,
    add_member,
    batches,
    gunzip,
    h5py_module,
    is_current,
    open_tree,
    suffix_of,
)

_BLOCK = 256


def write_npy(target: Path, source: Any) -> None:
    """Copy an array [n, h, w, 3] as uint8, a block at a time; `target` appears when it is whole."""
    import numpy as np

    header = {"descr": "|u1", "fortran_order": False, "shape": tuple(map(int, source.shape))}
    # Not mapped: a disk that fills up under a mapped file ends the process.
    with atomic_path(target) as staging, staging.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for start in range(0, source.shape[0], _BLOCK):
            handle.write(np.ascontiguousarray(source[start : start + _BLOCK], dtype=np.uint8).data)


_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
_SPLITS = {"training": "train", "valid": "val", "validation": "val"}


@dataclass(frozen=True)
class Row:
    """One image: its path, its name inside of the archive, and `marks`, which published splits go by."""

    path: str
    member: str
    label: str
    split: str | None = None
    group: str | None = None
    sites: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)


def read_rows(entry: PublicDataset, folder: Path) -> list[Row]:
    """Every labelled image of the dataset whose files lie in `folder`, in the order of the layout."""
    rows: list[Row] = []
    for rule in entry.layout:
        try:
            made = _READERS[rule["kind"]](entry, rule, folder)
        except HistobenchError:
            raise
        except Exception as error:  # readers of damaged files raise arbitrary errors
            if isinstance(error, OSError) and error.errno:
                raise  # of the disk, not of the files
            files = " or ".join(rule[key] for key in ("archive", "images", "labels", "table") if key in rule)
            raise HistobenchError(
                f"{entry.name}: {files} does not have the published form"
                f" ({type(error).__name__}: {error}); is it damaged, or a different version?"
            ) from error
        rows += [_completed(entry, row) for row in made]
    if not rows:
        raise HistobenchError(
            f"{entry.name}: no image was found in the files; is the archive another version?"
        )
    return rows


def _completed(entry: PublicDataset, row: Row) -> Row:
    label = entry.renamed.get(row.label, row.label)
    if label not in entry.classes:
        raise HistobenchError(
            f"{entry.name}: {row.path} has the label {row.label!r}, which is not one of its classes"
        )
    group = row.group or (_found(entry.group, row.member) if entry.group else None)
    found = {column: _found(regex, row.member) for column, regex in entry.sites.items()}
    sites = {**{column: value for column, value in found.items() if value is not None}, **row.sites}
    return replace(row, label=label, group=group, sites=sites)


def _found(regex: str, text: str) -> str | None:
    match = re.search(regex, text) or re.search(regex, text.rpartition("/")[2])
    if match is None:
        return None
    return next((part for part in match.groups() if part is not None), match[0])


def _archives(folder: Path, pattern: str) -> list[Path]:
    """The files or folders in `downloads` that a pattern names, sorted."""
    below = folder / "downloads"
    found = [path for path in below.glob(pattern) if not path.name.endswith((".part", ".part.json"))]
    if not found:
        raise HistobenchError(f"{below} has no {pattern}; run the download again")
    return sorted(found)


def _trees(folder: Path, rule: Mapping[str, Any]) -> list[Tree]:
    archives = _archives(folder, rule["archive"])
    groups = [archives] if rule.get("parts") else [[archive] for archive in archives]
    return [open_tree(group, folder) for group in groups]


def _from_files(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """Images whose path says the label, and perhaps the split: a regular expression with named groups."""
    pattern = re.compile(rule["path"])
    rows = []
    for tree in _trees(folder, rule):
        for name in tree.names:
            match = pattern.fullmatch(name)
            if not match or Path(name).name.startswith("._") or not name.lower().endswith(_IMAGES):
                continue
            named = match.groupdict()
            label = named.pop("label", None) or rule["label"]
            if rule.get("only") and label not in rule["only"]:
                continue
            split, group = named.pop("split", None), named.pop("group", None)
            sites = {key: value for key, value in {**rule.get("columns", {}), **named}.items() if value}
            rows.append(
                Row(f"{tree.prefix}/{name}", name, label, _split(split) or rule.get("split"), group, sites)
            )
    if rule.get("class_order"):
        place = {name: index for index, name in enumerate(entry.classes)}
        rows.sort(key=lambda row: place.get(entry.renamed.get(row.label, row.label), len(place)))
    return rows


def _split(text: str | None) -> str | None:
    return None if text is None else _SPLITS.get(text.strip().lower(), text.strip().lower())


def _from_table(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """Images listed in a CSV or JSON table that comes with them."""
    trees = _trees(folder, rule)
    places = {name: tree for tree in trees for name in tree.names}
    by_end: dict[str, list[str]] = {}
    for name in places:
        by_end.setdefault(name.rpartition("/")[2], []).append(name)
    rows = []
    for record in listed_records(folder, rule["table"], trees):
        wanted = rule["image"].format_map(record)
        # The folders above the image are often not those that the table was written with.
        called = by_end.get(wanted.rpartition("/")[2], [])
        near = [name for name in called if f"/{name}".endswith(f"/{wanted}")]
        if len(near) != 1:
            what = "is in the archive more than once" if near else "is not in the archive"
            raise HistobenchError(f"{entry.name}: the table names {wanted}, which {what}")
        rows.append(_row_of(rule, record, f"{places[near[0]].prefix}/{near[0]}", near[0]))
    return rows


def _row_of(rule: Mapping[str, Any], record: Mapping[str, str], path: str, member: str) -> Row:
    said = record[rule["split_column"]] if "split_column" in rule else None
    split = rule.get("splits", {}).get(said) or _split(said)
    sites = {
        name: record[column] for name, column in rule.get("site_columns", {}).items() if record.get(column)
    }
    group = record.get(rule["group_column"]) if "group_column" in rule else None
    marks = {name: record[name] for name in rule.get("marks", ()) if name in record}
    label = record[rule["label_column"]].strip()
    return Row(path, member, label, split or rule.get("split"), group or None, sites, marks)


def listed_records(folder: Path, table: str, trees: Sequence[Tree] = ()) -> list[dict[str, str]]:
    """The rows of a CSV or JSON table that was fetched by itself, or that is in one of the archives."""
    text = _text(folder, table, trees)
    if table.lower().endswith(".json"):
        return [{key: str(value) for key, value in record.items()} for record in parse_json(text)]
    return [
        {(key or "").strip(): value for key, value in record.items() if value is not None}
        for record in csv.DictReader(io.StringIO(text), skipinitialspace=True)
    ]


def _text(folder: Path, name: str, trees: Sequence[Tree]) -> str:
    alone = folder / "downloads" / name
    if alone.is_file():
        return read_plain_text(alone, encoding="utf-8-sig")
    for tree in trees:
        match = next((item for item in tree.names if item == name or item.endswith(f"/{name}")), None)
        if match is not None:
            return _read_member(folder / tree.prefix, match).decode("utf-8-sig")
    raise HistobenchError(f"the table {name} is neither in {alone.parent} nor in an archive")


def _read_member(place: Path, name: str) -> bytes:
    if place.is_dir():
        return read_bytes(place / name)
    if place.suffix.lower() == ".zip":
        with zipfile.ZipFile(place) as box:
            return box.read(name)
    with tarfile.open(place, "r:") as tar, tar.extractfile(name) as handle:  # type: ignore[union-attr]
        return handle.read()


def _from_arrays(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """HDF5 (PCam): pixels in one file, labels in another, perhaps a table with one line per image."""
    pixels, labels = (_plain(folder, rule[key]) for key in ("images", "labels"))
    with h5py_module().File(pixels, "r") as box:
        found = box[rule["images_key"]]
        images = found.shape[0]
        path = f"{pixels.relative_to(folder).as_posix()}/{rule['images_key']}"
        if found.id.get_offset() is None or str(found.dtype) != "uint8":  # in chunks, or no bytes: a copy
            target = folder / "images" / f"{pixels.stem}_{rule['images_key']}.npy"
            if not is_current(target, pixels):
                write_npy(target, found)
            path = target.relative_to(folder).as_posix()
    with h5py_module().File(labels, "r") as box:
        numbers = box[rule["labels_key"]][...].reshape(-1)
    groups: list[str | None] = [None] * images
    if (folder / "downloads" / rule.get("table", "")).is_file():
        groups = [record.get(rule["group_column"]) for record in listed_records(folder, rule["table"])]
    return [
        Row(f"{path}/{index}", f"{pixels.name}/{index}", entry.classes[number], rule.get("split"), group)
        for index, (number, group) in enumerate(zip(numbers, groups, strict=True))
    ]


def _plain(folder: Path, name: str) -> Path:
    source = _archives(folder, name)[0]
    if not source.name.endswith(".gz"):
        return source
    (folder / "images").mkdir(exist_ok=True)
    return gunzip(source, folder / "images" / source.name.removesuffix(".gz"))


def _from_npz(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """MedMNIST: one .npz with images and labels of every split."""
    import numpy as np

    source = _archives(folder, rule["archive"])[0]
    rows = []
    with np.load(source, allow_pickle=False) as box:
        for split in ("train", "val", "test"):
            target = folder / "images" / f"{source.stem}_{split}.npy"
            if not is_current(target, source):
                write_npy(target, box[f"{split}_images"])
            path = target.relative_to(folder).as_posix()
            rows += [
                Row(f"{path}/{index}", f"{split}/{index}", entry.classes[number], split)
                for index, number in enumerate(box[f"{split}_labels"].reshape(-1))
            ]
    return rows


def _from_npy(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """PanNuke: arrays of pixels and of names inside of a ZIP, one ZIP per fold."""
    import numpy as np

    rows = []
    for tree in _trees(folder, rule):
        place = folder / tree.prefix
        images, types = (
            next(name for name in tree.names if re.search(rule[key], name)) for key in ("images", "labels")
        )
        labels = np.load(io.BytesIO(_read_member(place, types)), allow_pickle=False)
        stem = re.sub(r"\W+", "_", Path(tree.prefix).stem)
        target = folder / "images" / f"{stem}.npy"
        if not is_current(target, place):
            write_npy(target, np.load(io.BytesIO(_read_member(place, images)), allow_pickle=False))
        split = rule.get("splits", {}).get(stem)
        path = target.relative_to(folder).as_posix()
        rows += [
            Row(f"{path}/{index}", f"{stem}/{index}", str(label), split, None, {"fold": stem})
            for index, label in enumerate(labels)
        ]
    return rows


def _from_parquet(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """Images inside of Parquet files; their bytes go into a TAR, unchanged, to be read one by one."""
    joined = None
    if "join" in rule:
        table = listed_records(folder, rule["table"])
        joined = {tuple(record[key] for key in rule["join"]): record for record in table}
    rows: list[Row] = []
    for file in _archives(folder, rule["archive"]):
        target = folder / "images" / f"{file.stem}.tar"
        with ExitStack() as stack:
            box = None
            if not is_current(target, file):
                box = stack.enter_context(tarfile.open(stack.enter_context(atomic_path(target)), "w"))
            records = (record for batch in batches(file) for record in batch.to_pylist())
            for number, record in enumerate(records):
                picture = record.pop(rule["image"])
                data = picture["bytes"] if isinstance(picture, dict) else picture
                member = f"{number:08d}{suffix_of(data)}"
                if box is not None:
                    add_member(box, member, data)
                about = {key: str(value) for key, value in record.items()}
                if joined is not None:
                    more = joined.get(tuple(about.get(key, "") for key in rule["join"]))
                    if more is None:
                        continue  # the table lists the images of this benchmark; there may be others
                    about |= more
                rows.append(_row_of(rule, about, f"{target.relative_to(folder).as_posix()}/{member}", member))
    return rows


_READERS = {
    "files": _from_files,
    "table": _from_table,
    "arrays": _from_arrays,
    "npz": _from_npz,
    "npy": _from_npy,
    "parquet": _from_parquet,
}
