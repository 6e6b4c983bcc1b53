"""Datasets in the format of the Hugging Face hub: parquet and Arrow files with encoded images."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import histobench as hb
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import locate
from histobench.roi.data.source import load_dataset
from histobench.roi.plan.plan_file import plan_from
from roi.registry.miniatures import png

CLASSES = ["normal", "tumor"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def rows(start: int, count: int, image: str = "image", label: str = "label") -> pa.Table:
    """As `datasets` writes them: the image as {bytes, path}, the names of classes in the schema's notes."""
    numbers = range(start, start + count)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {image: {"_type": "Image"}, label: {"names": CLASSES, "_type": "ClassLabel"}}
    table = pa.table(
        {
            image: pa.array([{"bytes": png(n), "path": None} for n in numbers], kind),
            label: pa.array([n % 2 for n in numbers], pa.int64()),
            "patient": [f"P{n // 2}" for n in numbers],
            "boxes": [[n] for n in numbers],
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def hub_folder(folder: Path, **names: str) -> Path:
    (folder / "data").mkdir(parents=True)
    for split, start, count in (("train", 0, 6), ("validation", 6, 2), ("test", 8, 4)):
        pq.write_table(rows(start, count, **names), folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def test_a_folder_of_parquet_files_is_a_dataset(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "tiles")
    dataset = load_dataset(f"hf:{folder}", group_column="patient")
    assert dataset.name == "tiles"
    assert dataset.classes == tuple(CLASSES)
    assert {split: len(images) for split, images in dataset.splits.items()} == {
        "train": 6,
        "val": 2,
        "test": 4,
    }
    first = dataset.splits["test"][0]
    assert (first.label, first.group) == (0, "P4")
    assert locate(first.path).read() == png(8)
    # A second reading takes the table that is there.
    made = next((tmp_path / "cache").rglob("images.tar")).stat().st_mtime_ns
    load_dataset(f"hf:{folder}", group_column="patient")
    assert next((tmp_path / "cache").rglob("images.tar")).stat().st_mtime_ns == made


def test_arrow_files_of_save_to_disk_are_read(tmp_path: Path) -> None:
    for split, start in (("train", 0), ("test", 6)):
        (tmp_path / "saved" / split).mkdir(parents=True)
        table = rows(start, 4)
        file = tmp_path / "saved" / split / "data-00000-of-00001.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    dataset = hb.load_dataset(f"hf:{tmp_path / 'saved'}", group_column="patient")
    assert repr(dataset) == "Dataset 'saved': 2 classes, 4 train, 4 test images, 4 groups"


def test_columns_with_other_names_are_named(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "tiles", image="img", label="diagnosis")
    with pytest.raises(
        HistobenchError, match=r"no column 'label'; name it with `label_column`: img, diagnosis"
    ):
        load_dataset(f"hf:{folder}")
    assert load_dataset(f"hf:{folder}", label_column="diagnosis").classes == tuple(CLASSES)
    with pytest.raises(HistobenchError, match=r"has no column 'pixels'"):
        load_dataset(f"hf:{folder}", image_column="pixels", label_column="diagnosis")


def test_a_plan_names_the_folder_relative_to_itself(tmp_path: Path) -> None:
    hub_folder(tmp_path / "tiles")
    content = {
        "datasets": [{"source": "hf:tiles", "group_column": "patient"}],
        "encoders": ["random-vit"],
        "results": "r",
    }
    plan = plan_from(content, where="plan", base=tmp_path)
    assert plan.datasets[0].name == "tiles"
    assert str(plan.datasets[0].source) == f"hf:{tmp_path / 'tiles'}"


def test_one_line_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(
        HistobenchError, match=r"hf:owner/tiles: cannot be downloaded from the hub .*give a folder"
    ) as told:
        load_dataset("hf:owner/tiles")
    assert "\n" not in str(told.value)
    with pytest.raises(HistobenchError, match="expected OWNER/DATASET, or a folder that exists"):
        load_dataset("hf:nothing here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(HistobenchError, match=r"no \.parquet or \.arrow files"):
        load_dataset(f"hf:{tmp_path / 'empty'}")
    with pytest.raises(HistobenchError, match=r"no columns \(`label_column`\)"):
        load_dataset(tmp_path / "empty", label_column="y")
