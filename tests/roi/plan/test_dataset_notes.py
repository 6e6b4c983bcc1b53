"""A results folder remembers how its datasets were read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.data.source import load_dataset
from histobench.roi.options import DatasetEntry, Plan
from histobench.roi.plan.notes import DATASETS, read_dataset_notes, write_dataset_notes


def plan(folder: Path, source: Path, **more: str) -> Plan:
    return Plan((DatasetEntry("tiles", source, **more),), ("tiny-vl",), results=folder, seed=7)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_dataset_is_read_again_with_the_same_splits(tmp_path: Path) -> None:
    table = write_demo_dataset(tmp_path / "data", train_per_class=4, test_per_class=2, size=32)
    tiles = table.parent / "tiles"
    source = tiles if any(path.is_dir() for path in tiles.iterdir()) else table
    write_dataset_notes(plan(tmp_path / "results", source, split="0.5/0.5"))
    note = read_dataset_notes(tmp_path / "results")["tiles"]
    again = note.read().checked()
    first = load_dataset(source, split="0.5/0.5", seed=7)
    assert again.splits == first.splits
    assert load_dataset(source, split="0.5/0.5", seed=8).splits != first.splits


def test_notes_of_earlier_plans_stay(tmp_path: Path) -> None:
    first = plan(tmp_path, tmp_path / "a.csv")
    write_dataset_notes(first)
    write_dataset_notes(replace(first, datasets=(DatasetEntry("other", tmp_path / "b.csv"),)))
    notes = read_dataset_notes(tmp_path)
    assert {name: Path(note.source).name for name, note in notes.items()} == {
        "tiles": "a.csv",
        "other": "b.csv",
    }


def test_another_split_does_not_replace_results(tmp_path: Path) -> None:
    first = plan(tmp_path, tmp_path / "tiles", split="0.7/0.3")
    write_dataset_notes(first)
    other = plan(tmp_path, tmp_path / "tiles", split="0.6/0.4")
    write_dataset_notes(other)  # nothing is stored yet
    (tmp_path / "tiles/tiny-vl/uni/KNN").mkdir(parents=True)
    (tmp_path / "tiles/tiny-vl/uni/KNN/KNN_complete_results.json").write_text("{}")
    write_dataset_notes(other)
    with pytest.raises(HistobenchError, match=r"another split .*another `results` folder"):
        write_dataset_notes(first)
    with pytest.raises(HistobenchError, match="another split"):
        write_dataset_notes(plan(tmp_path, tmp_path / "tiles", split="0.6/0.4", group_regex="(p)"))
    write_dataset_notes(replace(other, seed=8))  # runs of another seed have a folder of their own
    assert read_dataset_notes(tmp_path)["tiles"].split == "0.6/0.4"


def test_a_damaged_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / DATASETS).write_text("[1")
    assert read_dataset_notes(tmp_path) == {}
