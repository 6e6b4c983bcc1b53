"""The synthetic demo dataset as files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import histobench as hb
from histobench.core.errors import HistobenchError
from histobench.roi.data.demo import CLASSES, render_tile, write_demo_dataset


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_the_folder_holds_tiles_split_class_map_and_prompts(tmp_path: Path) -> None:
    table = write_demo_dataset(tmp_path, train_per_class=3, test_per_class=2, size=64)
    assert table == tmp_path / "synthetic-crc.csv"
    rows = _rows(table)
    assert len(rows) == 9 * 5
    for row in rows:
        path = tmp_path / row["image_path"]
        assert path.parent.name == CLASSES[int(row["label"])]
        with Image.open(path) as image:
            assert image.size == (64, 64)
    lines = (tmp_path / "synthetic-crc.txt").read_text().splitlines()
    assert lines == ["NORM,0", "STR,1", "TUM,2", "MUS,3", "MUC,4", "LYM,5", "DEB,6", "BACK,7", "ADI,8"]
    prompts = (tmp_path / "synthetic-crc-Zero_Shot_Prompts.txt").read_text().splitlines()
    assert prompts[0] == "This is a pathology image showing normal tissue characteristics"
    assert len(prompts) == 9
    assert "SYNTHETIC" in (tmp_path / "README.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("tiles", "train", "test"), [(5, 3, 2), (1, 11, 6)])
def test_training_and_test_patients_are_different_people(
    tmp_path: Path, tiles: int, train: int, test: int
) -> None:
    table = write_demo_dataset(
        tmp_path, train_per_class=11, test_per_class=6, size=32, tiles_per_patient=tiles
    )
    rows = _rows(table)
    groups = {split: {r["group"] for r in rows if r["split"] == split} for split in ("train", "test")}
    assert len(groups["train"]) == train
    assert len(groups["test"]) == test
    assert not groups["train"] & groups["test"]


def test_a_tile_on_disk_is_the_rendered_tile_up_to_jpeg(tmp_path: Path) -> None:
    write_demo_dataset(tmp_path, train_per_class=2, test_per_class=1, size=96, seed=4)
    with Image.open(tmp_path / "tiles/TUM/synthetic-TUM-train-0001.jpg") as image:
        found = np.asarray(image, dtype=np.int64)
    expected = render_tile("TUM", seed=4, index=1, size=96).astype(np.int64)
    assert np.abs(found - expected).mean() < 6


@pytest.mark.slow
def test_more_tiles_do_not_change_the_first_ones_and_fewer_leave_no_strangers(tmp_path: Path) -> None:
    write_demo_dataset(tmp_path / "small", train_per_class=2, test_per_class=1, size=48)
    write_demo_dataset(tmp_path / "large", train_per_class=4, test_per_class=3, size=48)
    for path in sorted((tmp_path / "small" / "tiles").rglob("*.jpg")):
        twin = tmp_path / "large" / path.relative_to(tmp_path / "small")
        assert path.read_bytes() == twin.read_bytes()
    write_demo_dataset(tmp_path / "large", train_per_class=2, test_per_class=1, size=48)
    assert len(list((tmp_path / "large" / "tiles").rglob("*.jpg"))) == 27


def test_a_complete_folder_is_left_alone_and_a_damaged_one_is_repaired(tmp_path: Path) -> None:
    arguments = {"train_per_class": 1, "test_per_class": 1, "size": 48}
    table = write_demo_dataset(tmp_path, **arguments)
    tile = tmp_path / "tiles/ADI/synthetic-ADI-train-0000.jpg"
    before, stamp = tile.read_bytes(), tile.stat().st_mtime_ns
    write_demo_dataset(tmp_path, **arguments)
    assert tile.stat().st_mtime_ns == stamp
    tile.unlink()
    table.unlink()
    write_demo_dataset(tmp_path, **arguments)
    assert tile.read_bytes() == before
    assert table.is_file()


def test_the_wide_layout_has_the_columns_of_the_documentation(tmp_path: Path) -> None:
    table = write_demo_dataset(
        tmp_path, name="CRC-100K", train_per_class=3, test_per_class=2, size=32, layout="wide"
    )
    rows = _rows(table)
    assert list(rows[0]) == ["train_path", "train_label", "val_path", "val_label", "test_path", "test_label"]
    assert len(rows) == 27
    assert sum(bool(row["test_path"]) for row in rows) == 18
    assert not any(row["val_path"] for row in rows)
    assert (tmp_path / "CRC-100K-Zero_Shot_Prompts.txt").is_file()


@pytest.mark.parametrize("bad", [{"train_per_class": 0}, {"test_per_class": 0}, {"size": 8}])
def test_wrong_arguments_stop_before_anything_is_written(tmp_path: Path, bad: dict) -> None:
    with pytest.raises(HistobenchError):
        hb.demo_dataset(tmp_path / "out", **bad)
    assert not (tmp_path / "out").exists()
