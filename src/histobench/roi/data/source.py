"""Where a dataset is and how to read it; `load_dataset` reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.parameters import shares
from histobench.core.records import record
from histobench.core.text import csv_text
from histobench.roi.data.class_map import label_id, read_class_map
from histobench.roi.data.hub_dataset import hub_name, hub_table, is_hub_dataset
from histobench.roi.data.readers import scan_csv, scan_folder, scan_tar, shards_in
from histobench.roi.data.roi_dataset import SPLITS, Reading, RoiDataset
from histobench.roi.data.sites import TargetColumns, site_table
from histobench.roi.data.split import parse_fractions
from histobench.roi.options import DatasetEntry, Origin, Plan, TargetOptions
from histobench.roi.registry.dataset_entry import is_name, not_found
from histobench.roi.registry.install import require
from histobench.roi.task_catalogue import CLASS, a_target

Fractions = tuple[float, float, float]
#: Fields that notes of earlier versions do not have; they are written only where something is said.
_LATER = ("name", "site_regex", "site_columns", "target_columns", "image_column", "label_column")


#: In the notes of results: files that were accepted with another checksum than published.
ACCEPTED = "accepted_checksums"


@record
class DatasetSource(Origin, TargetOptions):
    """A CSV, a folder, TAR shards, hf:OWNER/DATASET or a public dataset, and how it is split and grouped.

    `seed` is that of the split.
    """

    source: str
    classes_file: str | None = None
    name: str | None = None
    seed: int = 0

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
        split = note.get("split")
        return cls(
            **{
                **{key: value for key, value in note.items() if key != ACCEPTED},
                "split": None if split is None else shares(split, "split"),
                **{name: tuple(note.get(name) or ()) for name in ("site_columns", "target_columns")},
            }
        )

    def as_note(self) -> dict[str, Any]:
        """Plain values to be written down."""
        plain = {key: value for key, value in asdict(self).items() if key not in _LATER or value}
        return {key: value for key, value in plain.items() if (key, value) != ("target", CLASS)}

    def load(self) -> RoiDataset:
        """The dataset; all that is wrong with it is one error.

        Without a class map the classes are the sorted names (folders, or labels that are names), or the ids.
        """
        return self.read().checked()

    def read(self) -> Reading:
        """As `load`, but what is wrong comes back beside what could be read."""
        source, name, classes_file = Path(self.source), self.name, self.classes_file
        there = os.path.exists(source)  # also of what no file can be called
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        if not there and is_hub_dataset(self.source):
            source, name, there = hub_table(self.source, **columns), name or hub_name(self.source), True
        elif any(columns.values()):
            asked = next(key for key, value in columns.items() if value)
            raise HistobenchError(f"`{asked}` is for datasets of the hub (hf:OWNER/DATASET), not {source}")
        if not there and is_name(self.source):
            public = require(self.source, recommended=not self.split)
            source, name = public.table, name or public.name
            classes_file = classes_file or str(public.classes_file)
            there = True
        if not there and not source.suffix:
            raise HistobenchError(not_found(self.source))
        split = None if self.split is None else parse_fractions(self.split)
        classes = read_class_map(classes_file) if classes_file is not None else None
        target = TargetColumns.asked(self.target, self.target_columns)
        is_shards = source.suffix.lower() == ".tar" or (source.is_dir() and shards_in(source))
        options: dict[str, Any] = {
            "split": split,
            "group_regex": self.group_regex,
            "site_regex": self.site_regex,
            "seed": self.seed,
        }
        if not source.is_dir() and not is_shards:
            options |= {"group_column": self.group_column, "site_columns": self.site_columns}
            return scan_csv(source, classes, name, target=target, **options)
        if target is not None:
            raise HistobenchError(f"{source} has no columns; {a_target(target.kind)} needs a CSV")
        for flag, given in (("group", self.group_column), ("site", self.site_columns)):
            if given and not (is_shards and flag == "site"):
                raise HistobenchError(f"{source} has no columns; use `{flag}_regex`, or give a CSV")
        if is_shards:
            return scan_tar(source, classes, name, site_columns=self.site_columns, **options)
        return scan_folder(source, classes, name, **options)


# The one door for datasets: a CSV file, a folder, TAR shards, or the name of a public dataset.


def load_dataset(
    source: str | Path,
    *,
    classes_file: str | Path | None = None,
    split: str | Fractions | None = None,
    site_columns: Sequence[str] = (),
    **more: Any,
) -> RoiDataset:
    """The dataset of a CSV file, a folder or TAR shards; see `DatasetSource` for the arguments."""
    return DatasetSource(
        str(source),
        classes_file=None if classes_file is None else str(classes_file),
        split=None if split is None else shares(split, "split"),
        site_columns=tuple(site_columns),
        **more,
    ).load()


def scan_dataset(source: str | Path, *, classes_file: str | Path | None = None) -> Reading:
    """A dataset that says itself how it is split, with what is wrong beside what could be read."""
    return DatasetSource(str(source), None if classes_file is None else str(classes_file)).read()


def write_csv(dataset: RoiDataset, target: str | Path) -> Path:
    """Write `image_path,label,split[,group][,sites]` to `target`; returns the class map beside it.

    Paths are relative to the CSV. Labels are class names, or ids where a name could be taken for an id.
    """
    target = Path(target)
    grouped = any(image.group is not None for images in dataset.splits.values() for image in images)
    sites = site_table([image.sites for images in dataset.splits.values() for image in images])
    by_id = any(label_id(name) is not None for name in dataset.classes)
    header = ["image_path", "label", "split", *(["group"] if grouped else []), *sites]
    rows = []
    for split in SPLITS:
        for image in dataset.splits.get(split, ()):
            path = Path(os.path.relpath(image.path.absolute(), target.parent.absolute())).as_posix()
            label = str(image.label) if by_id else dataset.classes[image.label]
            placed = dict(image.sites)
            cells = [path, label, split, *([image.group or ""] if grouped else [])]
            rows.append([*cells, *(placed.get(name, "") for name in sites)])
    class_map = target.with_suffix(".txt")
    write_text(class_map, "".join(f"{name},{label}\n" for label, name in enumerate(dataset.classes)))
    write_text(target, csv_text(header, rows))
    return class_map
