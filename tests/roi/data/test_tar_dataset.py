"""TAR shards of the WebDataset layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.check import check_dataset
from histobench.roi.data.source import DatasetSource, load_dataset
from roi.registry.miniatures import png, tar_of


def shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(members))
    return path


def test_shards_are_read_by_split_with_labels_from_cls_or_json(tmp_path: Path) -> None:
    shard(tmp_path / "train-000.tar", {"a.png": png(1), "a.cls": b"0\n", "b.png": png(2), "b.cls": b"1"})
    shard(
        tmp_path / "train-001.tar",
        {"x/c.png": png(3), "x/c.json": json.dumps({"label": 1, "group": 7}).encode()},
    )
    shard(tmp_path / "test" / "0.tar", {"d.PNG": png(4), "d.cls": b"0", "e.cls": b"1", "e.jpg": png(5)})
    dataset = load_dataset(tmp_path, name="shards")
    found = {
        s: [(i.path.relative_to(tmp_path).as_posix(), i.label, i.group) for i in v]
        for s, v in dataset.splits.items()
    }
    assert found == {
        "train": [
            ("train-000.tar/a.png", 0, None),
            ("train-000.tar/b.png", 1, None),
            ("train-001.tar/x/c.png", 1, "7"),
        ],
        "test": [("test/0.tar/d.PNG", 0, None), ("test/0.tar/e.jpg", 1, None)],
    }
    assert [image.name for image in dataset.splits["train"]] == ["a.png", "b.png", "c.png"]
    findings = check_dataset(dataset)
    assert findings.errors == ()
    assert findings.sizes == {(8, 8): 5}


def test_one_shard_is_split_when_asked(tmp_path: Path) -> None:
    members = {}
    for i in range(20):
        members[f"p{i // 2}_{i}.png"] = png(i)
        members[f"p{i // 2}_{i}.cls"] = b"ADI" if i % 2 else b"TUM"
    path = shard(tmp_path / "all.tar", members)
    with pytest.raises(HistobenchError, match=r"all.tar: the name does not begin with train.*`split`"):
        load_dataset(path)
    dataset = load_dataset(path, split="0.8/0.2", group_regex=r"^p\d")
    assert dataset.classes == ("ADI", "TUM")
    assert {split: len(images) for split, images in dataset.splits.items()} == {"train": 14, "test": 6}
    assert dataset.has_groups


def test_what_is_wrong_in_a_shard_is_named(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "test.tar",
        {
            "a.png": png(1),
            "a.cls": b"A",
            "b.png": png(2),
            "c.png": b"junk",
            "c.cls": b"A",
            "d.png": png(4),
            "d.cls": b"Z",
        },
    )
    class_map = tmp_path / "map.txt"
    class_map.write_text("A,0\nB,1\n")
    findings = check_dataset(DatasetSource(str(path), str(class_map)).read())
    assert [(f.kind, f.origin.rpartition("/")[2]) for f in findings.errors] == [
        ("row", "b.png"),
        ("unreadable image", "c.png"),
        ("label", "d.png"),
        ("empty class", "test"),
    ]
    broken = tmp_path / "train.tar"
    broken.write_bytes(path.read_bytes()[:700])
    with pytest.raises(HistobenchError, match=r"train.tar"):
        load_dataset(broken)
    broken.write_bytes(b"junk" * 300)
    with pytest.raises(HistobenchError, match=r"cannot read the TAR file .*train.tar"):
        load_dataset(broken)
    with pytest.raises(HistobenchError, match=r"holds no images with labels"):
        load_dataset(shard(tmp_path / "val.tar", {"readme.txt": b"nothing here"}))
