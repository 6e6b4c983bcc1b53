"""Folders as labs have them, and what a check of them finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.data.source import DatasetSource, load_dataset


def fill(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number % 250, 0, 0)).save(folder / name)


PATIENTS = [f"P{p}/{c}/{k}.png" for p in range(6) for c in ("tumor", "normal") for k in range(2)]


@pytest.mark.parametrize(
    ("names", "tree", "groups"),
    [
        ([f"{c}/{k}.png" for c in "ab" for k in range(6)], "class/image", 0),
        (PATIENTS, "patient/class/image", 6),
        (
            [f"{c}/P{p}{c}/{k}.png" for c in "ab" for p in range(4) for k in range(2)],
            "class/patient/image",
            8,
        ),
        ([f"{c}/{m}/{k}.png" for c in "abc" for m in ("20x", "40x") for k in range(4)], "class/image", 0),
        (
            [f"{c}/P{p}{c}/S{k % 2}/{k}.png" for c in "ab" for p in range(4) for k in range(4)],
            "class/patient/slide/image",
            8,
        ),
        ([f"tiles/{name}" for name in PATIENTS], "patient/class/image", 6),
        ([f"tiles/{c}/{k}.png" for c in "ab" for k in range(6)], "class/image", 0),
    ],
)
def test_trees_are_recognized(tmp_path: Path, names: list[str], tree: str, groups: int) -> None:
    fill(tmp_path, *names)
    dataset = load_dataset(tmp_path, split="0.5/0.5")
    images = [image for part in dataset.splits.values() for image in part]
    assert len(images) == len(names)
    assert dataset.notes[0].endswith(f"read as {tree}")
    assert len(dataset.notes) == 2
    assert len({image.group for image in images} - {None}) == groups
    assert dataset.classes in (("normal", "tumor"), ("a", "b"), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("split/class/patient", "{split}/{label}/{patient}/{k}.png"),
        ("split/class/patient", "{split}/{label}/{patient}/roi/{k}.png"),
        ("class/split/slide/image", "{label}/{split}/{patient}/{k}.png"),
        ("*/patient/split/class", "export/{patient}/{split}/{label}/{k}.png"),
    ],
)
def test_a_tree_is_read_as_asked(tmp_path: Path, tree: str, name: str) -> None:
    for split in ("Train", "test"):
        for label, patient in (("x1", "anna"), ("x2", "bert"), ("x2", "carl")):
            fill(
                tmp_path,
                *(name.format(split=split, label=label, patient=split + patient, k=k) for k in range(2)),
            )
    dataset = load_dataset(tmp_path, tree=tree)
    assert dataset.classes == ("x1", "x2")
    assert {word: len(part) for word, part in dataset.splits.items()} == {"train": 6, "test": 6}
    assert {image.group for image in dataset.splits["test"]} == {"testanna", "testbert", "testcarl"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tree", "split/clas"), "`tree` 'split/clas': expected folders such as split/class/patient"),
        (("--tree", "split/patient"), "with class among them"),
        (("--tree", "class/class/split"), "each once"),
        (("--tree", "class/patient"), "has no split; add split to it"),
        (("--tree", "split/class", "--split", "0.5/0.5"), "has split; leave out"),
        (("--tree", "split/class/patient/slide"), "is not below folders split/class/patient/slide"),
        (("--tree", "class/split/patient"), "the folder x is not train, val or test"),
    ],
)
def test_bad_trees(
    tmp_path: Path, flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(
        tmp_path,
        *(f"{s}/{c}/{s}{p}/{k}.png" for s in ("train", "test") for c in "xy" for p in "ab" for k in "12"),
    )
    run = ["run", "--models", "tiny-vl", "--results", str(tmp_path / "r"), "--data", str(tmp_path), *flags]
    for command in (["data", "check", str(tmp_path), *flags], run):
        assert main(command) == 2
        shown = " ".join("".join(capsys.readouterr()).split()).replace("--tree", "`tree`")
        assert words in shown


def test_whole_slides_in_a_table_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.svs").write_bytes(b"II*\0")
    rows = ["a.svs,x,train", "b.svs,y,train", "c.svs,x,test", "d.svs,y,test"]
    (tmp_path / "t.csv").write_text("\n".join(["image_path,label,split", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 2
    assert "a whole slide, not a tile: cut" in " ".join("".join(capsys.readouterr()).split())
    with pytest.raises(HistobenchError, match="leave out `tree`"):
        load_dataset(tmp_path / "t.csv", tree="split/class")


def test_splits_above_a_tree_of_patients(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{s}/{s}{name}" for s in ("train", "test") for name in PATIENTS))
    dataset = load_dataset(tmp_path)
    assert dataset.classes == ("normal", "tumor")
    assert {image.group for image in dataset.splits["test"]} == {f"testP{p}" for p in range(6)}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a/1.svs", "b/2.ome.tif"), r"whole-slide files \(1.svs, 2.ome.tif\).*TRIDENT, LazySlide"),
        (("h5_files/slide.h5",), r"has features \(slide\.h5\), not images; give it as"),
    ],
)
def test_slides_and_features_are_named_for_what_they_are(
    tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(HistobenchError, match=words):
        load_dataset(tmp_path, split="0.5/0.5")


def test_results_in_the_folder_of_the_data_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, *[f"{c}/{k}.png" for c in "ab" for k in range(6)], "results/a/map.png")
    (tmp_path / "results" / "datasets.json").write_text("{}")
    reading = DatasetSource(str(tmp_path), split="0.5/0.5").read()
    assert reading.dataset.classes == ("a", "b")
    assert [str(each) for each in reading.warnings] == [
        f"{tmp_path / 'results'}: a folder of results, left out"
    ]
    with pytest.raises(HistobenchError, match="is a folder of results, not a dataset"):
        load_dataset(tmp_path / "results", split="0.5/0.5")


@pytest.mark.parametrize("below", ["", "a"])
def test_results_do_not_go_among_the_images(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "X", *[f"{c}/{k}.png" for c in "ab" for k in range(6)])
    data = ["--data", str(tmp_path / "X"), "--split", "0.5/0.5", "--results", str(tmp_path / "X" / below)]
    assert main(["run", *data, "--models", "random-vit", "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert "is a folder of images of --data" in shown.err
    assert sorted(path.name for path in (tmp_path / "X").iterdir()) == ["a", "b"]


def test_a_table_of_slides_is_checked_without_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"S{k}.svs,{'ab'[k % 2]},{('train', 'test')[k // 8]},p{k}\n" for k in range(16)]
    (tmp_path / "t.csv").write_text("image_path,label,split,group\n" + "".join(rows))
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "checked as slides or tiles by name, for `histobench run --features`" in shown
    (tmp_path / "t.csv").write_text("image_path,label,split,group\n" + "".join(rows).replace("p8", "p0"))
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 2
    assert "group 'p0' is in train and in test" in capsys.readouterr().out
