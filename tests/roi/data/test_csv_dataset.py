"""The two CSV layouts, and rows that are wrong."""

from __future__ import annotations

import csv
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples, scan_csv
from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.data.source import load_dataset, write_csv

CLASSES = ("NORM", "STR", "TUM")
WIDE = "train_path,train_label,val_path,val_label,test_path,test_label\n"
quick = settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def read(path: Path, classes: tuple[str, ...] | None = None, *name: str, **options: Any) -> RoiDataset:
    return scan_csv(path, classes, *name, **options).checked()


def write(folder: Path, text: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def listed(dataset: RoiDataset) -> dict[str, list[tuple[str, int]]]:
    return {
        split: [(image.path.name, image.label) for image in dataset.splits[split]] for split in dataset.splits
    }


def error_of(path: Path, classes: tuple[str, ...] | None = CLASSES, **options: object) -> str:
    with pytest.raises(HistobenchError) as caught:
        read(path, classes, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_wide_layout_has_columns_of_unequal_length_and_float_labels(tmp_path: Path) -> None:
    path = write(tmp_path, WIDE + "/abs/a.tif,2,,,/abs/d.tif,2.0\nsub/b.tif,0,,,e.tif,1.0\nc.tif,1.0,,,,\n")
    dataset = read(path, CLASSES, "CRC")
    assert listed(dataset) == {
        "train": [("a.tif", 2), ("b.tif", 0), ("c.tif", 1)],
        "test": [("d.tif", 2), ("e.tif", 1)],
    }
    assert dataset.name == "CRC"
    assert [image.path for image in dataset.splits["train"]] == [
        Path("/abs/a.tif"),
        tmp_path / "sub/b.tif",
        tmp_path / "c.tif",
    ]
    assert dataset.splits["test"][1].origin == f"{path}:3"
    assert not dataset.has_groups


def test_the_wide_layout_has_a_column_of_groups_per_split(tmp_path: Path) -> None:
    header = "train_path,train_label,train_patient,val_path,val_label,test_path,test_label,test_patient\n"
    path = write(tmp_path, header + "a.png,0,p1,,,b.png,0,p2\n")
    for asked in (None, "Patient"):
        dataset = read(path, CLASSES, group_column=asked)
        assert [image.group for images in dataset.splits.values() for image in images] == ["p1", "p2"]
        assert dataset.has_groups
    with pytest.raises(HistobenchError, match="no column 'train_slide'"):
        read(path, CLASSES, group_column="slide")


def test_the_long_layout_has_a_split_column_and_may_name_groups(tmp_path: Path) -> None:
    text = "image_path,label,split,group\na.png,0,train,p1\nb.png,TUM,Validation,p2\nc.png,1.0,test,p3\n"
    dataset = read(write(tmp_path, text), CLASSES)
    assert listed(dataset) == {"train": [("a.png", 0)], "val": [("b.png", 2)], "test": [("c.png", 1)]}
    assert [image.group for images in dataset.splits.values() for image in images] == ["p1", "p2", "p3"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_spreadsheets_write_is_read(tmp_path: Path, delimiter: str, ending: str) -> None:
    rows = [["Image_Path", " Label ", "SPLIT"], ["a, b.png", "0", "train"], [], ["c.png", "1.0", "test"]]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=ending).writerows(rows)
    dataset = read(write(tmp_path, "\ufeff" + text.getvalue()), CLASSES)
    assert listed(dataset) == {"train": [("a, b.png", 0)], "test": [("c.png", 1)]}
    assert dataset.splits["test"][0].origin.endswith(":4")


def test_all_wrong_rows_are_reported_together_with_their_lines(tmp_path: Path) -> None:
    text = (
        "image_path,label,split\n"  # 1
        "a.png,0,train\n"
        "b.png,9,train\n"  # 3: outside
        ",0,test\n"  # 4: no path
        "c.png,,test\n"  # 5: no label
        "d.png,1,tset\n"  # 6: no such split
        "e.png,1,test,p1,x\n"  # 7: too many cells
        "f.png,TUMM,test\n"  # 8: no such class
        "g.png,-1,test\n"  # 9
        "h.png,1.5,test\n"  # 10
        "i.png,1,\n"  # 11
        '"j\n.png",1,test\n'  # 12: over two lines
        "k.png,2,test\n"
    )
    path = write(tmp_path, text)
    lines = error_of(path).split("\n  ")
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in lines] == [str(n) for n in range(3, 13)]
    for line, words in zip(
        lines,
        [
            "label 9 is outside the class map (ids 0 to 2)",
            "no image_path",
            "c.png has no label",
            "split 'tset' is not train, val or test",
            "more cells than the header has (3)",
            "label 'TUMM' is not in the class map; did you mean TUM?",
            "label -1 is outside",
            "label '1.5' is not in the class map",
            "no split",
            "goes over several lines",
        ],
        strict=True,
    ):
        assert words in line
    reading = scan_csv(path, CLASSES)
    assert listed(reading.dataset) == {"train": [("a.png", 0)], "test": [("k.png", 2)]}


def test_only_the_first_problems_are_spelt_out(tmp_path: Path) -> None:
    path = write(tmp_path, "image_path,label,split\n" + "a.png,7,train\n" * 50)
    message = error_of(path)
    assert message.count("\n") == 20
    assert message.endswith("... and 30 more (50 problems in all)")


def test_without_a_class_map_classes_come_from_the_labels(tmp_path: Path) -> None:
    names = write(tmp_path, "image_path,label,split\na.png,b,train\nb.png,a,test\n")
    assert load_dataset(names).classes == ("a", "b")
    ids = write(tmp_path, "image_path,label,split\na.png,3.0,train\nb.png,0,test\n")
    assert load_dataset(ids).classes == ("0", "1", "2", "3")
    huge = write(tmp_path, "image_path,label,split\na.png,1e18,train\n")
    with pytest.raises(HistobenchError, match="too large for a"):
        load_dataset(huge)
    assert "label -1 is outside" in error_of(
        write(tmp_path, "image_path,label,split\na.png,-1,train\nb.png,1,test\n"), None
    )


def test_classes_named_by_numbers_are_read_as_names_only_when_ids_are_impossible(tmp_path: Path) -> None:
    grades = ("3", "4", "5")
    as_names = read(write(tmp_path, "image_path,label,split\na.png,3,train\nb.png,5,test\n"), grades)
    assert listed(as_names) == {"train": [("a.png", 0)], "test": [("b.png", 2)]}
    as_ids = read(write(tmp_path, "image_path,label,split\na.png,0,train\nb.png,2,test\n"), grades)
    assert listed(as_ids) == {"train": [("a.png", 0)], "test": [("b.png", 2)]}


def test_images_are_known_by_file_name_unless_file_names_collide(tmp_path: Path) -> None:
    text = "image_path,label,split\nx/a.png,0,train\ny/b.png,0,test\n"
    for more, names in (("", ["a.png", "b.png"]), ("y/a.png,0,test\n", ["x/a.png", "y/b.png", "y/a.png"])):
        dataset = read(write(tmp_path, text + more), CLASSES)
        assert [image.name for images in dataset.splits.values() for image in images] == names


def test_a_long_csv_without_splits_is_split_by_its_groups(tmp_path: Path) -> None:
    rows = "".join(f"{i}.png,{i % 3},p{i // 6}\n" for i in range(60))
    path = write(tmp_path, "file,label,patient\n" + rows)
    dataset = load_dataset(path, split="0.8/0.2", group_column="patient")
    assert {split: len(images) for split, images in dataset.splits.items()} == {"train": 42, "test": 18}
    groups = [{image.group for image in images} for images in dataset.splits.values()]
    assert not groups[0] & groups[1]
    assert "leave out `split`" in error_of(write(tmp_path, WIDE + "a,0,,,b,0\n", "w.csv"), split="0.5/0.5")
    with pytest.raises(HistobenchError, match="no column 'slide'"):
        load_dataset(path, split="0.8/0.2", group_column="slide")


def test_groups_may_come_from_the_paths(tmp_path: Path) -> None:
    text = "image_path,label,split\np1_a.png,0,train\np2_b.png,0,test\n"
    dataset = read(write(tmp_path, text), CLASSES, group_regex=r"^(p\d)_")
    assert [i.group for s in dataset.splits.values() for i in s] == ["p1", "p2"]
    path = write(tmp_path, text + "zzz.png,0,test\n")
    assert error_of(path, group_regex=r"^(p\d)_").endswith(
        "finds no group in 1 of 3 paths. What it finds: 'zzz.png': nothing; 'p1_a.png': 'p1'"
    )
    assert "not a regular expression" in error_of(path, group_regex="(")


@pytest.mark.slow
@quick
@given(text=st.text(st.sampled_from('image_path,label,split\n\r"0.1train;test \tx\0'), max_size=120))
def test_any_text_is_a_dataset_or_a_clear_error(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "image_path,label,split\n" + text)
    try:
        dataset = read(path, CLASSES)
    except HistobenchError as error:
        assert str(path) in str(error)  # noqa: PT017  (an error is one of two right outcomes)
    else:
        assert any(dataset.splits.values())


def test_a_written_split_reads_back_the_same(tmp_path: Path) -> None:
    images = tuple(
        RoiImage(tmp_path / f"{i}, é.png", i % 2, f"{i}, é.png", "x", f"p{i}", (("scanner", f"S{i}"),))
        for i in range(4)
    )
    dataset = RoiDataset("set", ("fat, white", "muscle"), {"train": images[:2], "test": images[2:]})
    grades = RoiDataset("set", ("5", "1"), dataset.splits)
    for data in (dataset, grades):
        class_map = write_csv(data, tmp_path / "out" / "set.csv")
        back = load_dataset(tmp_path / "out" / "set.csv", classes_file=class_map)
        assert back.classes == data.classes
        for split, members in data.splits.items():
            found = [(i.path.resolve(), i.label, i.name, i.group, i.sites) for i in back.splits[split]]
            assert found == [(i.path, i.label, i.name, i.group, i.sites) for i in members]


def test_an_image_counts_once_and_two_labels_name_both_rows(tmp_path: Path) -> None:
    rows = "a.png,0,train\nb.png,1,test\nb.png,1,test\n"
    reading = scan_csv(write(tmp_path, "image_path,label,split\n" + rows), CLASSES)
    assert listed(reading.checked()) == {"train": [("a.png", 0)], "test": [("b.png", 1)]}
    assert [warning.message for warning in reading.warnings] == [
        "1 row lists an image again; each image counts once"
    ]
    path = write(tmp_path, "image_path,label,split\n" + rows + "b.png,2,test\n")
    assert error_of(path) == f"{path}:5: b.png is labeled TUM here and STR at {path}:3; keep one of the rows"


@pytest.mark.parametrize("name", ["group", "Patient", "patient_id", "case_id", "slide", "slide_id"])
def test_a_column_of_patients_is_found_by_name_and_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"path;class;split;{name}\na.png;x;train;p1\nb.png;x;test;p2\n")
    dataset = read(path)
    assert [image.group for images in dataset.splits.values() for image in images] == ["p1", "p2"]
    assert f"patients or slides (groups) from '{name.lower()}'" in dataset.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_columns_by_name_in_any_encoding_below_any_folder(
    tmp_path: Path, encoding: str, separator: str
) -> None:
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "t.csv"
    rows = [
        ["Datei", "Befund", "Menge", "Fall"],
        ["ä.png", "Tumör", "train", "7"],
        ["b.png", "n", "test", "8"],
    ]
    path.write_bytes("\n".join(separator.join(row) for row in rows).encode(encoding))
    names = {
        "image_column": "datei",
        "label_column": "Befund",
        "split_column": "Menge",
        "group_column": "Fall",
    }
    dataset = load_dataset(path, root=str(tmp_path), **names)
    assert dataset.classes == ("Tumör", "n")
    assert dataset.splits["train"][0][:5] == (tmp_path / "ä.png", 0, "ä.png", f"{path}:2", "7")
    with pytest.raises(HistobenchError, match="is not a folder"):
        load_dataset(path, root=str(tmp_path / "gone"), **names)


@pytest.mark.slow
def test_a_large_table_takes_a_hundred_bytes_an_image(tmp_path: Path) -> None:
    """While it is read, too; texts of Python would take several times as much."""
    count = 10_000
    split = ("train", "test")
    rows = (f"tiles/{k % 100}/{k:08d}.jpg,{k % 9},{split[k % 2]},p{k // 20}" for k in range(count))
    (tmp_path / "t.csv").write_text("image_path,label,split,group\n" + "\n".join(rows))
    tracemalloc.start()
    dataset = load_dataset(tmp_path / "t.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(dataset.splits["train"]) == count / 2
    assert peak / count < 150
