"""Folders of class folders, with and without train/val/test above them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.readers import scan_folder
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.source import load_dataset
from histobench.roi.data.table_reader import Wanted


def fill(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def files(dataset: RoiDataset, root: Path) -> dict[str, list[str]]:
    return {
        split: [image.path.relative_to(root).as_posix() for image in images]
        for split, images in dataset.splits.items()
    }


def tiles(root: Path) -> Path:
    return fill(root, *(f"{c}/p{p}_{i}.png" for c in ("TUM", "ADI") for p in range(5) for i in range(4)))


def test_train_val_and_test_folders_are_the_splits(tmp_path: Path) -> None:
    fill(tmp_path, "train/B/1.png", "train/A/2.JPG", "Validation/A/3.tif", "test/B/deep/er/4.tiff")
    dataset = load_dataset(tmp_path)
    assert dataset.classes == ("A", "B")
    assert dataset.name == tmp_path.name
    assert files(dataset, tmp_path) == {
        "train": ["train/A/2.JPG", "train/B/1.png"],
        "val": ["Validation/A/3.tif"],
        "test": ["test/B/deep/er/4.tiff"],
    }
    assert dataset.splits["test"][0].label == 1
    assert dataset.splits["test"][0].name == "4.tiff"
    assert dataset.splits["test"][0].origin == str(tmp_path / "test/B/deep/er/4.tiff")


def test_class_folders_are_split_when_asked_and_only_then(tmp_path: Path) -> None:
    tiles(tmp_path)
    with pytest.raises(HistobenchError, match=r"\(ADI, TUM\) but no train and test folders.*`split`"):
        load_dataset(tmp_path)
    dataset = load_dataset(tmp_path, split="0.6/0.2/0.2", group_regex=r"/(p\d)_")
    assert {split: len(images) for split, images in dataset.splits.items()} == {
        "train": 24,
        "val": 8,
        "test": 8,
    }
    groups = [{image.group for image in images} for images in dataset.splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 5
    for images in dataset.splits.values():
        labels = [image.label for image in images]
        assert labels.count(0) == labels.count(1)


def test_what_file_managers_leave_behind_changes_nothing(tmp_path: Path) -> None:
    clean, noisy = tiles(tmp_path / "clean" / "set"), tiles(tmp_path / "noisy" / "set")
    fill(noisy, ".DS_Store", "TUM/.DS_Store", "TUM/._p0_0.png", "ADI/Thumbs.db", "ADI/desktop.ini")
    fill(noisy, "__MACOSX/TUM/p0_0.png", ".git/x.png", "TUM/.ipynb_checkpoints/p0_0.png", "ADI/@eaDir/p.png")
    one = load_dataset(clean, split="0.7/0.1/0.2", seed=3)
    two = scan_folder(noisy, Wanted(split="0.7/0.1/0.2", seed=3))
    assert files(one, clean) == files(two.dataset, noisy)
    assert two.warnings == ()


def test_the_order_of_the_file_system_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles(tmp_path)
    first = load_dataset(tmp_path, split="0.7/0.1/0.2")
    listdir, walk = os.listdir, os.walk
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))

    def backwards(top: str) -> object:
        for parent, folders, names in walk(top):
            folders.reverse()
            yield parent, folders, sorted(names, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert load_dataset(tmp_path, split="0.7/0.1/0.2") == first


def test_a_class_map_gives_the_ids_and_names_unknown_folders(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "train/A/1.png", "train/B/2.png", "test/A/3.png")
    class_map = tmp_path / "map.txt"
    class_map.write_text("B,0\nA,1\nC,2\n")
    dataset = load_dataset(data, classes_file=class_map)
    assert dataset.classes == ("B", "A", "C")
    assert [image.label for image in dataset.splits["train"]] == [1, 0]
    class_map.write_text("Bb,0\nA,1\n")
    with pytest.raises(
        HistobenchError, match=r"train/B: the folder is not in the class map; did you mean Bb\?"
    ):
        load_dataset(data, classes_file=class_map)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    fill(tmp_path, "A/1.png", "A/notes.txt", "A/x.npy", "stray.png", "meta.csv", "README.md", "B/2.png")
    reading = scan_folder(tmp_path, Wanted(split="0.5/0.5"))
    assert [str(warning).removeprefix(f"{tmp_path}") for warning in reading.warnings] == [
        "/meta.csv: a CSV in a folder is not read; to use what it says, give the CSV itself",
        ": outside the class folders, left out: stray.png",
        "/A: not images by name, left out: notes.txt, x.npy",
    ]


def test_an_empty_class_folder_is_a_class(tmp_path: Path) -> None:
    fill(tmp_path, "train/A/1.png", "test/A/2.png")
    (tmp_path / "train/B").mkdir()
    assert load_dataset(tmp_path).classes == ("A", "B")


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ([], {}, "has no class folders"),
        (["1.png"], {}, "has no class folders"),
        (["train/A/1.png", "TUM/2.png"], {}, "mixes splits (train) with others (TUM)"),
        (["train/A/1.png", "test/A/1.png"], {"split": "0.5/0.5"}, "leave out `split`"),
        (["A/1.png"], {"split": "0.5/0.5", "group_regex": r"p(\d)"}, "finds no group in 1 of 1 paths"),
        (["A/1.png"], {"split": "0.5/0.5", "group_column": "p"}, "has no columns"),
    ],
)
def test_a_folder_that_is_no_dataset_says_why(
    tmp_path: Path, names: list[str], options: dict[str, str], words: str
) -> None:
    fill(tmp_path, *names)
    with pytest.raises(HistobenchError) as caught:
        load_dataset(tmp_path, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)
