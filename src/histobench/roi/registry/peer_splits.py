"""Published splits, drawn again with Python's `random` over lists in the order of the peer's own code."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.registry.dataset_entry import PeerSplit, PublicDataset
from histobench.roi.registry.table_rows import Row, listed_records

_SHOTS, _SETS = ("1", "2", "4", "8", "16"), 1000


def drawn(entry: PublicDataset, split: PeerSplit, rows: Sequence[Row], folder: Path = Path()) -> list[Row]:
    """The rows of a published split; counts and checksum are compared with the published ones."""
    classes = split.options.get("classes")
    kept = [row for row in rows if classes is None or row.label in classes]
    generator = random.Random(split.options.get("seed", 0))
    placed = _RULES[split.rule](_Draw(entry, split.options, kept, generator, folder))
    for name, wanted in split.counts.items():
        found = sum(row.split == name for row in placed)
        if found != wanted:
            raise HistobenchError(
                f"{entry.name}@{split.name}: {found:,} {name} images, but {wanted:,} are published;"
                " is the archive another version?"
            )
    if split.md5 is not None:
        found_md5 = thunder_md5(entry, split, placed, generator)
        if found_md5 != split.md5:
            raise HistobenchError(
                f"{entry.name}@{split.name}: the split has the checksum {found_md5}, published is {split.md5}"
            )
    return placed


def thunder_md5(entry: PublicDataset, split: PeerSplit, rows: Sequence[Row], generator: random.Random) -> str:
    """THUNDER's checksum of a split: of the lists of images and labels, and of 1,000 support sets per shot.

    `generator` is the one that drew the split: the supports are drawn with the numbers that follow.
    """
    order = split.options.get("class_ids") or entry.classes
    lists: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        own = [row for row in rows if row.split == name]
        labels = [order.index(row.label) for row in own]
        lists[name] = {"images": [row.member for row in own], "labels": labels}
    few: dict[str, dict[str, list[list[int]]]] = {shot: {"images": [], "labels": []} for shot in _SHOTS}
    if not split.options.get("md5_before_supports"):
        by_label: dict[int, list[int]] = {}
        for index, label in enumerate(lists["train"]["labels"]):
            by_label.setdefault(label, []).append(index)
        for shot in _SHOTS:
            labels = [label for label in by_label for _ in range(int(shot))]
            for _ in range(_SETS):
                drawn = [generator.sample(members, int(shot)) for members in by_label.values()]
                few[shot]["images"].append([index for indices in drawn for index in indices])
                few[shot]["labels"].append(labels)
    lists["train_few_shot"] = few
    return hashlib.md5(json.dumps(lists, sort_keys=True).encode("utf-8"), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class _Draw:
    """What a rule draws from; `folder` holds the dataset's files."""

    entry: PublicDataset
    options: Mapping[str, Any]
    rows: Sequence[Row]
    generator: random.Random
    folder: Path


def _ranges(draw: _Draw) -> list[Row]:
    """Positions in the list of all images, class after class, names sorted."""
    return [
        replace(row, split=split)
        for split in ("train", "val", "test")
        for start, end in draw.options.get(split, ())
        for row in draw.rows[start:end]
    ]


def _images(draw: _Draw) -> list[Row]:
    """A share of the training images, drawn image by image, becomes validation."""
    train = [row for row in draw.rows if row.split == "train"]
    chosen = set(draw.generator.sample(range(len(train)), int(draw.options["share"] * len(train))))
    return [
        *(replace(row, split="val" if index in chosen else "train") for index, row in enumerate(train)),
        *(row for row in draw.rows if row.split == "test"),
    ]


def _rows(draw: _Draw) -> list[Row]:
    """Each training row of the table goes to validation with a probability, row by row."""
    placed = []
    for row in draw.rows:
        is_val = row.split == "train" and draw.generator.uniform(0, 1) < draw.options["share"]
        placed.append(replace(row, split="val") if is_val else row)
    return placed


def _cases(draw: _Draw) -> list[Row]:
    """A share of the training cases becomes validation; images are listed case by case."""
    return [
        *_by_case([row for row in draw.rows if row.split == "train"], draw.options["share"], draw.generator),
        *(row for row in draw.rows if row.split == "test"),
    ]


def _cases_per_class(draw: _Draw) -> list[Row]:
    """As `_cases`, drawn anew for every class: one case can be in two splits for two classes."""
    placed: list[Row] = []
    for name in draw.options.get("classes") or draw.entry.classes:
        train = [row for row in draw.rows if row.label == name and row.split == "train"]
        placed += _by_case(train, draw.options["share"], draw.generator)
        placed += [row for row in draw.rows if row.label == name and row.split == "test"]
    return placed


def _by_group(rows: Sequence[Row]) -> dict[str | None, list[Row]]:
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def _by_case(rows: Sequence[Row], share: float, generator: random.Random) -> list[Row]:
    cases = _by_group(rows)
    chosen = set(generator.sample(tuple(cases), int(share * len(cases))))
    return [
        replace(row, split="val" if case in chosen else "train")
        for case, members in cases.items()
        for row in members
    ]


def _patients_per_class(draw: _Draw) -> list[Row]:
    """Per class the patients are shuffled; the first share is train, the next val, the rest test."""
    placed: list[Row] = []
    for name in draw.entry.classes:
        patients = _by_group([row for row in draw.rows if row.label == name])
        order = list(patients)
        draw.generator.shuffle(order)
        outer = int(draw.options["share"] * len(order))
        inner = int(draw.options["share"] * outer)
        for index, patient in enumerate(order):
            split = "train" if index < inner else "val" if index < outer else "test"
            placed += [replace(row, split=split) for row in patients[patient]]
    return placed


def _groups(draw: _Draw) -> list[Row]:
    """Named patients are validation or test; the others are train."""
    lists = {split: {str(item) for item in draw.options.get(split, ())} for split in ("val", "test")}
    return [
        replace(row, split=next((split for split, names in lists.items() if row.group in names), "train"))
        for row in draw.rows
    ]


def _column(draw: _Draw) -> list[Row]:
    """A site (or another column) decides; sites that are not named are left out."""
    column = draw.options["column"]

    def value(row: Row) -> str | None:
        return row.split if column == "split" else row.sites.get(column) or row.marks.get(column)

    return [
        replace(row, split=split)
        for split in ("train", "val", "test")
        for wanted in draw.options.get(split, ())
        for row in draw.rows
        if value(row) == str(wanted)
    ]


def _listed(draw: _Draw) -> list[Row]:
    """A table that comes with the dataset lists the images, by some of their marks."""
    keys, table = draw.options["join"], draw.options["table"]
    wanted = {tuple(record[key] for key in keys) for record in listed_records(draw.folder, table)}
    return [
        replace(row, split=draw.options["split"])
        for row in draw.rows
        if tuple(row.marks.get(key, "") for key in keys) in wanted
    ]


_RULES = {
    "ranges": _ranges,
    "images": _images,
    "rows": _rows,
    "cases": _cases,
    "cases-per-class": _cases_per_class,
    "patients-per-class": _patients_per_class,
    "groups": _groups,
    "column": _column,
    "listed": _listed,
}
