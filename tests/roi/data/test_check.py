"""A dataset is looked at as a whole, and everything wrong with it is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import scan_csv
from histobench.roi.data.check import Findings, check_dataset, drop_bad
from histobench.roi.data.source import load_dataset


def tile(folder: Path, name: str, seed: int, size: tuple[int, int] = (36, 34)) -> str:
    """Write an image that depends on the seed alone, whatever the format."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return name


def findings_of(folder: Path, rows: list[str], classes: tuple[str, ...] = ("A", "B")) -> Findings:
    table = folder / "data.csv"
    table.write_text("image_path,label,split,group\n" + "".join(row + "\n" for row in rows))
    return check_dataset(scan_csv(table, classes), workers=2)


def clean_rows(folder: Path) -> list[str]:
    rows = []
    for seed, split in enumerate(["train", "train", "val", "val", "test", "test"]):
        rows.append(f"{tile(folder, f'{seed}.png', seed)},{'AB'[seed % 2]},{split},p{seed // 2}")
    return rows


def test_a_clean_dataset_has_no_findings(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, clean_rows(tmp_path))
    assert [finding.kind for finding in findings.found] == ["small test set"]  # one test image of each class
    assert findings.sizes == {(36, 34): 6}
    assert repr(findings).startswith("0 errors and 1 warning in 6 images that can be read")


def test_everything_is_checked_before_anything_is_reported(tmp_path: Path) -> None:
    rows = clean_rows(tmp_path)  # lines 2 to 7
    (tmp_path / "broken.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    (tmp_path / "empty.jpg").touch()
    rows += [
        "gone.png,A,train,p8",  # 8
        "broken.png,A,train,p8",  # 9
        "empty.jpg,B,train,p8",  # 10
        "0.png,C,train,p8",  # 11
        f"{tile(tmp_path, 'leak.tif', 4)},A,train,p8",  # 12: 4.png is in test (line 6)
        f"{tile(tmp_path, 'more.png', 90)},A,train,p2",  # 13: p2 is in test
        f"{tile(tmp_path, 'twin.png', 0)},A,train,p0",  # 14: as 0.png (line 2)
    ]
    findings = findings_of(tmp_path, rows)
    assert [(f.level, f.kind, f.origin.rpartition(":")[2]) for f in findings.found] == [
        ("error", "missing file", "8"),
        ("error", "unreadable image", "9"),
        ("error", "unreadable image", "10"),
        ("error", "label", "11"),
        ("warning", "small test set", "data"),
        ("error", "image in two splits", "12"),
        ("error", "group in two splits", "13"),
        ("warning", "double image", "14"),
    ]
    table = tmp_path / "data.csv"
    lines = [str(finding) for finding in findings.errors]
    assert len(lines) == 6
    shown = repr(findings).split("\n  ")
    assert shown[0].startswith("6 errors and 2 warnings in ")
    assert [line for line in shown[1:-1] if "single test image" not in line] == [
        f"error: {line}" for line in lines[: len(shown) - 3]
    ]
    assert lines[0] == f"{table}:8: {tmp_path / 'gone.png'} does not exist"
    assert "broken.png: the image is damaged or truncated" in lines[1]
    assert lines[2].endswith("empty.jpg: the file is empty")
    assert lines[4] == f"{table}:12: leak.tif in train is the same image as 4.png in test ({table}:6)"
    assert "group 'p2' is in train and in test" in lines[5]


@pytest.mark.parametrize("form", ["png", "bmp", "tif", "webp"])
def test_a_copy_in_another_format_is_the_same_image(tmp_path: Path, form: str) -> None:
    rows = [f"{tile(tmp_path, 'a.png', 1)},A,train,p1"]
    pixels = Image.open(tmp_path / "a.png")
    pixels.save(tmp_path / f"b.{form}", **({"lossless": True} if form == "webp" else {}))
    rows += [f"b.{form},A,test,p2", f"{tile(tmp_path, 'c.png', 2)},B,train,p1"]
    found = findings_of(tmp_path, rows).of("image in two splits")
    assert len(found) == 1
    assert f"a.png in train is the same image as b.{form} in test" in found[0].message


def test_the_same_bytes_in_another_shape_are_another_image(tmp_path: Path) -> None:
    Image.new("RGB", (4, 6)).save(tmp_path / "a.png")
    Image.new("RGB", (6, 4)).save(tmp_path / "b.png")
    assert not findings_of(tmp_path, ["a.png,A,train,p1", "b.png,A,test,p2"]).of("image in two splits")


def test_train_and_val_may_share_with_a_warning_but_not_with_test_nor_labels(tmp_path: Path) -> None:
    name = tile(tmp_path, "a.png", 1)
    found = findings_of(tmp_path, [f"{name},A,{split},p1" for split in ("train", "val", "test")])
    for kind in ("image in two splits", "group in two splits"):
        assert sorted(f.level for f in found.of(kind)) == ["error", "error", "warning"]
        (warned,) = (f.message for f in found.of(kind) if f.level == "warning")
        assert "in train" in warned
        assert "in val" in warned
    found = findings_of(tmp_path, [f"{name},A,test,p1", f"{name},B,test,p1"])
    assert any("labeled B, but the same image is labeled A" in f.message for f in found.warnings)


def test_empty_classes_and_splits_are_found(tmp_path: Path) -> None:
    rows = [f"{tile(tmp_path, 'a.png', 1)},A,train,p1", f"{tile(tmp_path, 'b.png', 2)},B,test,p2"]
    found = findings_of(tmp_path, rows, ("A", "B", "C"))
    assert [(f.level, f.message) for f in found.of("empty class")] == [
        ("warning", "class 'A' (id 0) has no test images"),
        ("error", "class 'B' (id 1) has no train images, but 1 in test: no model can learn it"),
        ("error", "class 'C' (id 2) has no images"),
    ]
    only_train = findings_of(tmp_path, rows[:1], ("A",))
    assert [f.message for f in only_train.errors][:1] == ["there are no test images"]
    only_test = findings_of(tmp_path, rows[1:], ("A", "B"))
    assert "only Zero-shot and Robustness can run" in only_test.of("split")[0].message


def test_some_groups_but_not_all_is_a_warning(tmp_path: Path) -> None:
    rows = clean_rows(tmp_path)
    rows[1] = rows[1].rpartition(",")[0] + ","
    found = findings_of(tmp_path, rows)
    assert [(f.kind, f.origin.rpartition(":")[2]) for f in found.found] == [
        ("small test set", "data"),
        ("groups", "3"),
    ]


def test_bad_images_can_be_left_out_and_are_listed(tmp_path: Path) -> None:
    rows = clean_rows(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"nothing")
    table = tmp_path / "data.csv"
    table.write_text(
        "image_path,label,split,group\n" + "\n".join([*rows, "broken.png,A,test,p2", "gone.png,B,train,p0"])
    )
    dataset = load_dataset(table)
    findings = check_dataset(dataset)
    kept = drop_bad(dataset, findings)
    assert {split: len(images) for split, images in kept.splits.items()} == {"train": 2, "val": 2, "test": 2}
    assert [bad.image.name for bad in findings.bad_images if bad.image] == ["gone.png", "broken.png"]
    assert "not a PNG, JPEG or TIFF image" in findings.bad_images[1].message
    assert check_dataset(kept).errors == ()
    assert drop_bad(kept, check_dataset(kept)) == kept


def test_a_target_without_its_bad_images_is_still_that_target(tmp_path: Path) -> None:
    table = tmp_path / "data.csv"
    named = [tile(tmp_path, f"{seed}.png", seed) for seed in range(4)]
    lines = [f"{name},{seed / 3},{'train' if seed < 2 else 'test'}" for seed, name in enumerate(named)]
    table.write_text("\n".join(["image_path,label,split", *lines, "gone.png,2.5,test"]))
    data = load_dataset(table, target="regression")
    assert check_dataset(data, on_bad_image="skip").errors == ()
    assert drop_bad(data, check_dataset(data)).target == data.target


def test_progress_reaches_the_number_of_files(tmp_path: Path) -> None:
    table = tmp_path / "data.csv"
    table.write_text("image_path,label,split,group\n" + "\n".join(clean_rows(tmp_path)))
    seen: list[tuple[int, int]] = []
    check_dataset(load_dataset(table), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_skipping_bad_images_judges_what_is_left(tmp_path: Path) -> None:
    rows = [
        f"{tile(tmp_path, 'a.png', 1)},A,train,p1",
        f"{tile(tmp_path, 'b.png', 2)},A,test,p2",
        "gone.png,B,test,p2",
    ]
    table = tmp_path / "data.csv"
    table.write_text("image_path,label,split,group\n" + "\n".join(rows))
    found = check_dataset(load_dataset(table), on_bad_image="skip")
    assert [(f.level, f.kind) for f in found.found] == [
        ("warning", "missing file"),
        ("error", "empty class"),
        ("warning", "small test set"),
    ]
    assert len(found.bad_images) == 1


@pytest.mark.slow
def test_odd_sizes_are_named_from_the_first_pixel_beyond_their_limits(tmp_path: Path) -> None:
    odd = [(31, 50), (32, 257), (257, 32), (5_001, 5_000)]
    rows = []
    for number, (width, height) in enumerate([*odd, (32, 50), (32, 256), (256, 32), (300, 40)]):
        Image.new("L", (width, height), number).save(tmp_path / f"{width}x{height}.png", compress_level=1)
        rows.append(f"{width}x{height}.png,{'AB'[number % 2]},{('train', 'test')[number > 3]},p{number}")
    found = findings_of(tmp_path, rows).of("unusual image")
    assert {finding.level for finding in found} == {"warning"}
    assert " ".join(finding.message for finding in found).count(" pixels: encoders see it reduced") == 1
    assert {finding.message.split(".png")[0] for finding in found} == {f"{w}x{h}" for w, h in odd}
