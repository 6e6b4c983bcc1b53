"""From unpacked files to labelled rows, by the layout that an entry gives."""

from __future__ import annotations

import csv
import fnmatch
import io
import os
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


def class_names(labels: Any, classes: Sequence[str], *, images: int, where: str) -> list[str]:
    """The class of every image from an array of numbers, of whatever shape, with one number per image."""
    import numpy as np

    numbers = np.asarray(labels).reshape(-1)
    if len(numbers) != images:
        raise HistobenchError(f"{where}: {len(numbers):,} labels for {images:,} images")
    if numbers.dtype.kind not in "uib":
        raise HistobenchError(f"{where}: labels are whole numbers, not {numbers.dtype}")
    least, most = (int(numbers.min()), int(numbers.max())) if images else (0, 0)
    if least < 0 or most >= len(classes):
        raise HistobenchError(f"{where}: labels from {least} to {most}, but there are {len(classes)} classes")
    return [classes[int(number)] for number in numbers]


def hdf5_images(file: Path, key: str, folder: Path) -> tuple[str, int]:
    """The path below which rows are found, and how many there are.

    It is that of the HDF5 file, or of a copy as NumPy file where the pixels are in chunks or no bytes.
    """
    import numpy as np

    with h5py_module().File(file, "r") as box:
        found = _dataset(box, key, file)
        _check_shape(found.shape, file.name)
        if found.id.get_offset() is not None and found.dtype == np.uint8:
            return f"{file.relative_to(folder).as_posix()}/{key}", found.shape[0]
        target = folder / "images" / f"{file.stem}_{key}.npy"
        if not is_current(target, file):
            write_npy(target, found)
        return target.relative_to(folder).as_posix(), found.shape[0]


def _dataset(box: Any, key: str, file: Path) -> Any:
    found = box.get(key)
    if not hasattr(found, "shape"):
        raise HistobenchError(f"{file.name} has no dataset {key!r}")
    return found


def _check_shape(shape: tuple[int, ...], where: str) -> None:
    if len(shape) != 4 or shape[3] != 3 or not all(shape):
        raise HistobenchError(f"{where}: pixels have the shape {shape}; images are [n, height, width, 3]")


def images_in(file: Path) -> int:
    """How many images a NumPy file holds that `write_npy` wrote."""
    import numpy as np

    return int(np.load(file, mmap_mode="r").shape[0])


def write_npy(target: Path, source: Any) -> None:
    """Copy an array [n, h, w, 3] as uint8, a block at a time; `target` appears when it is whole.

    It is written, not mapped: a disk that fills up under a mapped file ends the process.
    """
    import numpy as np

    _check_shape(source.shape, target.stem)
    header = {"descr": "|u1", "fortran_order": False, "shape": tuple(map(int, source.shape))}
    with atomic_path(target) as staging, staging.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for start in range(0, source.shape[0], _BLOCK):
            block = np.asarray(source[start : start + _BLOCK])
            if block.dtype != np.uint8:
                block = _as_bytes(block, target.stem)
            handle.write(np.ascontiguousarray(block).data)


def _as_bytes(block: Any, where: str) -> Any:
    """Whole numbers from 0 to 255, however they are stored; shares of 1 would all become black."""
    import numpy as np

    if block.min() < 0 or block.max() > 255 or (np.rint(block) != block).any():
        raise HistobenchError(f"{where}: the pixels are not whole numbers between 0 and 255")
    return block.astype(np.uint8)


_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
_SPLITS = {"training": "train", "valid": "val", "validation": "val"}


@dataclass(frozen=True)
class Row:
    """One image: its path relative to the dataset's folder, and its name inside of the archive.

    `marks` are what published splits go by and what is no site: identifiers, the part of a benchmark.
    """

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
    sites = dict(row.sites)
    for column, regex in entry.sites.items():
        if column not in sites:
            value = _found(regex, row.member)
            if value is not None:
                sites[column] = value
    return replace(row, label=label, group=group, sites=sites)


def _found(regex: str, text: str) -> str | None:
    match = re.search(regex, text) or re.search(regex, text.rpartition("/")[2])
    if match is None:
        return None
    return next((part for part in match.groups() if part is not None), match[0])


def _archives(folder: Path, pattern: str) -> list[Path]:
    """The files or folders in `downloads` that a pattern names, sorted."""
    below = folder / "downloads"
    names = sorted(os.listdir(below)) if below.is_dir() else []
    whole = [name for name in names if not name.endswith((".part", ".part.json"))]
    found = [below / name for name in whole if fnmatch.fnmatchcase(name, pattern)]
    if not found and (below / pattern).exists():
        found = [below / pattern]
    if not found:
        raise HistobenchError(f"{below} has no {pattern}; run the download again")
    return found


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
            if (
                match is None
                or name.rpartition("/")[2].startswith("._")
                or not name.lower().endswith(_IMAGES)
            ):
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
    for record in _records(folder, rule, trees):
        wanted = rule["image"].format_map(record)
        # The folders above the image are often not those that the table was written with.
        near = [
            name for name in by_end.get(wanted.rpartition("/")[2], []) if f"/{name}".endswith(f"/{wanted}")
        ]
        if len(near) != 1:
            what = "is in the archive more than once" if near else "is not in the archive"
            raise HistobenchError(f"{entry.name}: the table names {wanted}, which {what}")
        name = near[0]
        rows.append(_row_of(rule, record, f"{places[name].prefix}/{name}", name))
    return rows


def _row_of(rule: Mapping[str, Any], record: Mapping[str, str], path: str, member: str) -> Row:
    split = rule.get("splits", {}).get(record[rule["split_column"]]) if "split_column" in rule else None
    if "split_column" in rule and split is None:
        split = _split(record[rule["split_column"]])
    sites = {
        name: record[column] for name, column in rule.get("site_columns", {}).items() if record.get(column)
    }
    group = record.get(rule["group_column"]) if "group_column" in rule else None
    marks = {name: record[name] for name in rule.get("marks", ()) if name in record}
    label = record[rule["label_column"]].strip()
    return Row(path, member, label, split or rule.get("split"), group or None, sites, marks)


def listed_records(folder: Path, table: str) -> list[dict[str, str]]:
    return _records(folder, {"table": table}, ())


def _records(folder: Path, rule: Mapping[str, Any], trees: Sequence[Tree]) -> list[dict[str, str]]:
    text = _text(folder, rule["table"], trees)
    if rule["table"].lower().endswith(".json"):
        return [{key: str(value) for key, value in record.items()} for record in parse_json(text)]
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    return [
        {(key or "").strip(): value for key, value in record.items() if value is not None}
        for record in reader
    ]


def _text(folder: Path, name: str, trees: Sequence[Tree]) -> str:
    """A table that was fetched by itself, or that lies in one of the archives."""
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
    with tarfile.open(place, "r:") as tar:
        handle = tar.extractfile(name)
        if handle is None:
            raise HistobenchError(f"{place} has no member {name!r}")
        return handle.read()


def _from_arrays(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """HDF5 (PCam): pixels in one file, labels in another, perhaps a table with one line per image."""
    pixels, labels = (_plain(folder, rule[key]) for key in ("images", "labels"))
    path, images = hdf5_images(pixels, rule["images_key"], folder)
    with h5py_module().File(labels, "r") as box:
        numbers = _dataset(box, rule["labels_key"], labels)[...]
    names = class_names(numbers, entry.classes, images=images, where=labels.name)
    records: list[dict[str, str]] = []
    if (folder / "downloads" / rule.get("table", "")).is_file():
        records = _records(folder, rule, ())
        if len(records) != images:
            raise HistobenchError(f"{rule['table']} has {len(records):,} lines for {images:,} images")
    return [
        Row(
            f"{path}/{index}",
            f"{pixels.name}/{index}",
            name,
            rule.get("split"),
            records[index].get(rule["group_column"]) if records else None,
        )
        for index, name in enumerate(names)
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
            labels, target = box[f"{split}_labels"], folder / "images" / f"{source.stem}_{split}.npy"
            if not is_current(target, source):
                write_npy(target, box[f"{split}_images"])
            path = target.relative_to(folder).as_posix()
            names = class_names(labels, entry.classes, images=images_in(target), where=source.name)
            rows += [
                Row(f"{path}/{index}", f"{split}/{index}", name, split) for index, name in enumerate(names)
            ]
    return rows


def _from_npy(entry: PublicDataset, rule: Mapping[str, Any], folder: Path) -> list[Row]:
    """PanNuke: arrays of pixels and of names inside of a ZIP, one ZIP per fold."""
    import numpy as np

    rows = []
    for tree in _trees(folder, rule):
        images, types = (
            next((name for name in tree.names if re.search(rule[key], name)), None)
            for key in ("images", "labels")
        )
        if images is None or types is None:
            raise HistobenchError(f"{entry.name}: {tree.prefix} holds no {rule['images']}")
        labels = np.load(io.BytesIO(_read_member(folder / tree.prefix, types)), allow_pickle=False)
        stem = re.sub(r"\W+", "_", Path(tree.prefix).stem)
        target = folder / "images" / f"{stem}.npy"
        if not is_current(target, folder / tree.prefix):
            pixels = np.load(io.BytesIO(_read_member(folder / tree.prefix, images)), allow_pickle=False)
            write_npy(target, pixels)
        found = images_in(target)
        if labels.shape != (found,):
            raise HistobenchError(f"{entry.name}: {tree.prefix}: {labels.size:,} labels for {found:,} images")
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
        table = _records(folder, rule, ())
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
                if not isinstance(data, bytes) or not data:
                    raise ValueError(f"image {number} has no bytes")
                member = f"{number:08d}{suffix_of(data)}"
                if box is not None:
                    add_member(box, member, data)
                about = {key: str(value) for key, value in record.items()}
                if joined is not None:
                    more = joined.get(tuple(about.get(key, "") for key in rule["join"]))
                    if more is None:
                        continue  # the table lists the images of this benchmark; there may be others
                    about |= more
                path = f"{target.relative_to(folder).as_posix()}/{member}"
                rows.append(_row_of(rule, about, path, member))
    return rows


_READERS = {
    "files": _from_files,
    "table": _from_table,
    "arrays": _from_arrays,
    "npz": _from_npz,
    "npy": _from_npy,
    "parquet": _from_parquet,
}
