"""Where a dataset is and how to read it; `load_dataset` reads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.folders import cache_dir
from histobench.core.records import record
from histobench.core.text import csv_text
from histobench.roi.data.class_map import label_id, read_class_map
from histobench.roi.data.hub_dataset import hub_name, hub_table, is_hub_dataset
from histobench.roi.data.masks import is_mask_folder, read_codes, scan_masks
from histobench.roi.data.readers import scan_folder, scan_tar, shards_in
from histobench.roi.data.roi_dataset import SPLITS, Reading, RoiDataset
from histobench.roi.data.sites import PLACE_COLUMNS, Place, site_table
from histobench.roi.data.split import fractions_text, parse_fractions
from histobench.roi.data.table_reader import Wanted, read_table
from histobench.roi.data.tables import CsvSheet, FrameSheet
from histobench.roi.data.targets import TargetColumns
from histobench.roi.data.task_folders import kind_of_folder, read_task_folder, target_of_folder
from histobench.roi.options import DataOptions, DatasetEntry, Origin, Plan, TargetOptions
from histobench.roi.registry.dataset_entry import is_name, not_found
from histobench.roi.registry.install import require
from histobench.roi.task_catalogue import CLASS, MASK, a_target

_COLUMNS = ("image_column", "label_column", "group_column", "split_column")
#: Fields that notes of earlier versions do not have; they are written only where something is said.
_LATER = (
    *("name", "site_regex", "site_columns", "target_columns", "mask_classes", "image_column"),
    *("label_column", "split_column", "root", "tree", "pool"),
)
#: In the notes of results: files that were accepted with another checksum than published.
ACCEPTED = "accepted_checksums"


@record
class DatasetSource(Origin, TargetOptions):
    """A CSV, a folder, TAR shards, hf:OWNER/DATASET or a public dataset, and how it is split and grouped."""

    source: str
    classes_file: str | None = None
    name: str | None = None
    seed: int = 0

    @classmethod
    def asked(cls, source: str, options: DataOptions) -> DatasetSource:
        """The dataset that a command or a call describes."""
        names = [each.name for each in fields(DatasetSource) if hasattr(options, each.name)]
        return cls(source, classes_file=options.classes, **{name: getattr(options, name) for name in names})

    @classmethod
    def of(cls, entry: DatasetEntry, plan: Plan) -> DatasetSource:
        return cls(
            str(entry.source),
            classes_file=None if entry.class2id is None else str(entry.class2id),
            name=entry.name,
            seed=plan.seed,
            **{each.name: getattr(entry, each.name) for each in fields(Origin)},
            **{each.name: getattr(plan, each.name) for each in fields(TargetOptions)},
        )

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> DatasetSource:
        """What `as_note` gave; an unknown field is a TypeError."""
        columns = {name: tuple(note.get(name) or ()) for name in ("site_columns", "target_columns")}
        values = {key: value for key, value in note.items() if key != ACCEPTED}
        return cls(**{**values, **columns, "split": fractions_text(note.get("split"))})

    def as_note(self) -> dict[str, Any]:
        """Plain values to be written down."""
        plain = {key: value for key, value in asdict(self).items() if key not in _LATER or value}
        return {key: value for key, value in plain.items() if (key, value) != ("target", CLASS)}

    def load(self) -> RoiDataset:
        """The dataset; all that is wrong with it is one error."""
        found = self.read().checked()
        return replace(found, pool=self.pool) if self.pool else found

    def read(self) -> Reading:
        """As `load`, but what is wrong comes back beside what could be read."""
        if self.source in FRAMES:
            return Reading(FRAMES[self.source])
        source, name, classes_file = Path(self.source), self.name, self.classes_file
        there = os.path.exists(source)  # also of what no file can be called
        is_on_hub = not there and is_hub_dataset(self.source)
        if is_on_hub:
            source = hub_table(self.source, image_column=self.image_column, label_column=self.label_column)
            name = name or hub_name(self.source)
        elif not there and is_name(self.source):
            public = require(self.source, recommended=not self.split)
            source, name = public.table, name or public.name
            classes_file = classes_file or str(public.classes_file)
        elif not there and not source.suffix:
            raise HistobenchError(not_found(self.source))
        if source.is_dir() and kind_of_folder(source):
            return self._task_folder(source, name)
        wanted = self.wanted(name, classes_file)
        if is_on_hub:
            wanted = replace(wanted, image_column=None, label_column=None)
        target = self.asked_target(source)
        is_shards = source.suffix.lower() == ".tar" or (source.is_dir() and shards_in(source))
        if self.tree and (is_shards or not source.is_dir()):
            raise HistobenchError(f"{source} is not a folder of class folders; leave out `tree`")
        if not source.is_dir() and not is_shards:
            return read_table(CsvSheet.open(source), wanted, source.stem, target)
        if target is not None and target.kind == MASK and is_mask_folder(source):
            return scan_masks(source, wanted, target)
        if target is not None:
            raise HistobenchError(f"{source} has no columns; {a_target(target.kind)} needs a CSV")
        for option in (*_COLUMNS, "root", *(() if is_shards else ("site_columns",))):
            if getattr(self, option):
                advice = f"use `{option.split('_')[0]}_regex`, or " if option[:4] in ("grou", "site") else ""
                raise HistobenchError(f"{source} has no columns (`{option}`); {advice}give a CSV")
        return scan_tar(source, wanted) if is_shards else scan_folder(source, wanted)

    def asked_target(self, source: Path) -> TargetColumns | None:
        """What is predicted; the codes of masks may be in a file beside the table."""
        target = TargetColumns.asked(self.target, self.target_columns)
        if target is None or target.kind != MASK:
            return target
        return replace(target, codes=read_codes(self.mask_classes, source))

    def wanted(self, name: str | None, classes_file: str | None) -> Wanted:
        """What is asked of the files, whatever their kind."""
        if self.root is not None and not Path(self.root).expanduser().is_dir():
            raise HistobenchError(f"`root` {self.root} is not a folder")
        if self.split is not None:
            parse_fractions(self.split)
        classes = read_class_map(classes_file) if classes_file is not None else None
        same = {each.name: getattr(self, each.name) for each in fields(Origin)}
        return Wanted(classes, name, self.seed, **same)

    def _task_folder(self, source: Path, name: str | None) -> Reading:
        """A folder of Patho-Bench, HEST-Benchmark or plismbench, which says itself how it is split."""
        target = target_of_folder(source)
        if self.target not in (CLASS, target):
            raise HistobenchError(f"{source}: the target of this folder is {target}, not {self.target}")
        for option in ("split", "group_regex", "site_regex", "target_columns", "root", *_COLUMNS):
            if getattr(self, option):
                raise HistobenchError(f"{source} is a task folder with its own table; leave out `{option}`")
        return read_task_folder(source, name, self.site_columns)


#: DataFrames that this process has read, by the file that other processes read them from.
FRAMES: WeakValueDictionary[str, RoiDataset] = WeakValueDictionary()


def read_frame(frame: Any, source: DatasetSource) -> Reading:
    """Read a DataFrame; `source` says how, and names the dataset."""
    sheet = FrameSheet.of(frame, source.image_column, source.root)
    target = source.asked_target(Path(source.root or ".") / "data")
    return read_table(sheet, source.wanted(source.name, source.classes_file), "data", target)


def load_dataset(
    source: str | Path,
    *,
    classes_file: str | Path | None = None,
    split: str | tuple[float, float, float] | None = None,
    site_columns: Sequence[str] = (),
    **more: Any,
) -> RoiDataset:
    """The dataset of a CSV file, a folder or TAR shards; see `DatasetSource` for the arguments."""
    return DatasetSource(
        str(source),
        classes_file=None if classes_file is None else str(classes_file),
        split=fractions_text(split),
        site_columns=tuple(site_columns),
        **more,
    ).load()


def write_csv(dataset: RoiDataset, target: str | Path) -> Path:
    """Write `image_path,label,split[,group][,sites]` to `target`; returns the class map beside it.

    Paths are relative to the CSV. Labels are class names, or ids where a name could be taken for an id.
    """
    target = Path(target)
    start = target.parent.absolute()
    header, rows = _table_of(dataset, lambda path: Path(os.path.relpath(path.absolute(), start)).as_posix())
    write_text(target, csv_text(header, rows))
    return _write_class_map(dataset, target)


def keep_frame(dataset: RoiDataset) -> Path:
    """Write the table of a DataFrame into the cache, where the workers of a run and the report find it."""
    header, rows = _table_of(dataset, str)
    text = csv_text(header, rows)
    path = cache_dir() / "frames" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    write_text(path, text)
    if dataset.target is None:
        _write_class_map(dataset, path)
    FRAMES[str(path)] = dataset
    return path


def _write_class_map(dataset: RoiDataset, table: Path) -> Path:
    path = table.with_suffix(".txt")
    write_text(path, "".join(f"{name},{label}\n" for label, name in enumerate(dataset.classes)))
    return path


def _table_of(dataset: RoiDataset, written: Callable[[Path], str]) -> tuple[list[str], list[list[Any]]]:
    images = [(split, image) for split in SPLITS for image in dataset.splits.get(split, ())]
    grouped = any(image.group is not None for _, image in images)
    placed = any(image.place is not None for _, image in images)
    sites = site_table([image.sites for _, image in images])
    by_id = any(label_id(name) is not None for name in dataset.classes)
    target = dataset.target.names if dataset.target else ()
    header = ["image_path", *(target or ["label"]), "split", *(["group"] if grouped else []), *sites]
    header += PLACE_COLUMNS if placed else []
    rows: list[list[Any]] = []
    for split, image in images:
        label: list[Any] = [str(image.label) if by_id else dataset.classes[image.label]]
        truth = [written(image.mask)] if image.mask else map(repr, image.target)
        cells = [written(image.path), *(truth if target else label), split]
        cells += [image.group or ""] if grouped else []
        own = dict(image.sites)
        cells += [own.get(name, "") for name in sites]
        cells += (image.place or Place()) if placed else ()
        rows.append(cells)
    return header, rows
