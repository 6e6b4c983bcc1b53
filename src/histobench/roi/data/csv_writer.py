"""A dataset written down as the long CSV, so that a split can be kept, looked at and shared."""

from __future__ import annotations

import os
from pathlib import Path

from histobench.core.files import write_text
from histobench.roi.data.class_map import label_id
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.data.sites import site_table
from histobench.roi.data.tables import csv_text


def write_csv(dataset: RoiDataset, target: str | Path) -> Path:
    """Write `image_path,label,split[,group][,sites]` to `target`; returns the class map beside it.

    Paths are relative to the CSV. Labels are class names, or ids where a name could be taken for an id.
    """
    target = Path(target)
    grouped = any(image.group is not None for images in dataset.splits.values() for image in images)
    sites = site_table([image.sites for images in dataset.splits.values() for image in images])
    by_id = any(label_id(name) is not None for name in dataset.classes)
    rows = [["image_path", "label", "split", *(["group"] if grouped else []), *sites]]
    for split in SPLITS:
        for image in dataset.splits.get(split, ()):
            path = Path(os.path.relpath(image.path.absolute(), target.parent.absolute())).as_posix()
            label = str(image.label) if by_id else dataset.classes[image.label]
            placed = dict(image.sites)
            cells = [path, label, split, *([image.group or ""] if grouped else [])]
            rows.append([*cells, *(placed.get(name, "") for name in sites)])
    class_map = target.with_suffix(".txt")
    write_text(class_map, "".join(f"{name},{label}\n" for label, name in enumerate(dataset.classes)))
    write_text(target, csv_text(rows))
    return class_map
