"""`histobench data get` end to end, from a local server, for every layout of the registry."""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import locate
from histobench.roi.data.source import load_dataset
from histobench.roi.registry import dataset_entry as catalogue
from histobench.roi.registry.dataset_entry import PublicDataset, all_datasets
from histobench.roi.registry.install import accepted_files, get
from roi.registry.miniatures import MADE, png, zip_of

from .conftest import Habits

pytestmark = pytest.mark.slow


def _served(
    name: str, server: Habits, home: Path, monkeypatch: pytest.MonkeyPatch, *, counts: bool = False
) -> PublicDataset:
    """The registry's own entry over miniature files: served, or put in place where they come by form."""
    entry = all_datasets()[name]
    files = MADE[name](entry)
    small = tuple(
        replace(file, url=f"{server.address}/{file.name}", bytes=len(files[file.name]), md5=None, sha256=None)
        for file in entry.files
        if file.name in files
    )
    if entry.access == "form":
        folder = home / name / "downloads"
        folder.mkdir(parents=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        small = tuple(replace(file, md5=None, sha256=None) for file in entry.files)
    else:
        server.files |= {f"/{file}": data for file, data in files.items()}
    made = replace(entry, files=small)
    if not counts:
        peers = {key: replace(peer, counts={}, md5=None) for key, peer in entry.splits.items()}
        made = replace(made, counts={}, splits=peers)
    monkeypatch.setitem(all_datasets(), name, made)
    return made


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(MADE))
def test_a_dataset_is_fetched_listed_and_every_image_opens(
    name: str, server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _served(name, server, data_home, monkeypatch)
    found = get(name, pause=0.01)
    with found.table.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert {row["label"] for row in rows} == set(entry.classes)
    assert set(entry.site_columns) <= set(rows[0])
    for row in rows:
        assert open_rgb(locate(found.folder / row["image_path"]).read()).size[0] >= 4
    if "split" in rows[0] and name == "chaoyang":
        places = {(row["split"], row["image_path"].split("/")[-2]) for row in rows}
        assert places == {("train", "train"), ("test", "test")}
    dataset = load_dataset(name, split=None if "split" in rows[0] else "0.5/0.5")
    assert dataset.name == name
    assert dataset.classes == entry.classes
    assert sum(map(len, dataset.splits.values())) == len(rows)


def test_bach_gives_the_published_splits_and_thunders_checksum(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 400 names of BACH are known, so that THUNDER's published checksum can be reached without images."""
    _served("bach", server, data_home, monkeypatch, counts=True)
    get("bach", pause=0.01)
    sizes = {
        split: {word: len(images) for word, images in load_dataset(f"bach@{split}").splits.items()}
        for split in ("eva", "thunder")
    }
    assert sizes == {"eva": {"train": 268, "test": 132}, "thunder": {"train": 218, "val": 50, "test": 132}}
    names = {
        split: {image.path.name for image in load_dataset(f"bach@{split}").splits["test"]} for split in sizes
    }
    assert names["eva"] == names["thunder"]


def test_another_count_than_the_published_one_is_an_error(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served("crc100k", server, data_home, monkeypatch, counts=True)
    with pytest.raises(HistobenchError, match=r"27 images.*100,000 are published"):
        get("crc100k", pause=0.01)


def test_a_split_that_is_not_the_published_one_is_lost_alone(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _served("bach", server, data_home, monkeypatch, counts=True)
    wrong = {**entry.splits, "thunder": replace(entry.splits["thunder"], md5="0" * 32)}
    monkeypatch.setitem(all_datasets(), "bach", replace(entry, splits=wrong))
    found = get("bach", pause=0.01)
    assert any("bach@thunder" in note and "checksum" in note for note in found.notes)
    assert len(load_dataset("bach@eva").splits["test"]) == 132
    with pytest.raises(HistobenchError, match=r"bach@thunder is not available: .* published is 0000"):
        load_dataset("bach@thunder")
    with pytest.raises(HistobenchError, match="bach@thunder is not available"):
        get("bach@thunder", pause=0.01)


def test_run_says_how_to_fetch_a_public_dataset_that_is_not_here(
    data_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--data", "pathorob-camelyon", "--models", "random-vit"]
    assert main([*command, "--results", str(tmp_path / "r")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "pathorob-camelyon@pathorob is not on this machine" in said
    assert "histobench data get pathorob-camelyon" in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("name", "listed", "left_out"), [("pathorob-camelyon", 7, {3}), ("pathorob-tolkach-esca", 18, {0, 7, 14})]
)
def test_pathorobs_subsets_are_what_is_meant_without_a_split(
    name: str,
    listed: int,
    left_out: set[int],
    server: Habits,
    data_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The very images, by their pixels: another subset of as many images would not do."""
    images = listed - len(left_out)
    _served(name, server, data_home, monkeypatch)
    get(name, pause=0.01)
    dataset = load_dataset(name)
    assert dataset.name == f"{name}@pathorob"
    assert {split: len(members) for split, members in dataset.splits.items()} == {"test": images}
    found = {open_rgb(locate(image.path).read()).tobytes() for image in dataset.splits["test"]}
    assert found == {open_rgb(png(number)).tobytes() for number in {*range(listed)} - left_out}
    assert {column for image in dataset.splits["test"] for column, _ in image.sites} == {"site"}
    whole = load_dataset(name, split="0.5/0.5")  # asked for a split, all images are meant
    assert sum(map(len, whole.splits.values())) > images


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrong", [{"md5": "0" * 32}, {"bytes": 7}])
@pytest.mark.parametrize("where", ["host", "folder"])
def test_another_file_than_published_is_accepted_knowingly_and_recorded(
    server: Habits,
    data_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: dict[str, Any],
    where: str,
) -> None:
    """Another checksum and another size, from the host and from a mirror: one rule, one way to accept it."""
    entry = _served("esca-tolkach", server, data_home, monkeypatch)
    first = replace(entry.files[0], **wrong)
    monkeypatch.setitem(all_datasets(), "esca-tolkach", replace(entry, files=(first, *entry.files[1:])))
    data = server.files[f"/{first.name}"]
    for file in entry.files if where == "folder" else ():
        copy = data_home / "esca-tolkach" / "downloads" / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(server.files[f"/{file.name}"])
    sha256 = hashlib.sha256(data).hexdigest()

    assert main(["data", "get", "esca-tolkach"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    # A server that announces another size is not asked for the bytes, so their checksum is not known yet.
    checksum = "SHA256 (of the file offered)" if where == "host" and "bytes" in wrong else sha256
    assert f"To use this file as it is: histobench data get ... --accept-checksum {checksum}" in said
    assert (f"{len(data):,} bytes, but 7 are published" in said) == ("bytes" in wrong)
    assert main(["data", "get", "esca-tolkach", "--accept-checksum", "1" * 64]) == 2
    assert f"--accept-checksum {sha256}" in " ".join(capsys.readouterr().err.split())
    assert main(["data", "get", "esca-tolkach", "--accept-checksum", sha256]) == 0
    assert f"and was accepted: sha256 {sha256}" in " ".join(capsys.readouterr().out.split())
    table = data_home / "esca-tolkach" / "esca-tolkach.csv"
    assert accepted_files(table) == [f"{first.name} sha256 {sha256}"]


def test_groups_and_sites_come_with_the_table(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("camelyon17-wilds", "ccrcc", "pathorob-camelyon", "pcam"):
        _served(name, server, data_home, monkeypatch)
    wilds = list(csv.DictReader(get("camelyon17-wilds", pause=0.01).table.open(encoding="utf-8")))
    splits = {"0": "train", "1": "val", "2": "test", "3": "train", "4": "train"}
    assert {(row["site"], row["split"]) for row in wilds} == set(splits.items())
    kidney = list(csv.DictReader(get("ccrcc", pause=0.01).table.open(encoding="utf-8")))
    assert {(row["site"], row["split"]) for row in kidney} == {("TCGA", "train"), ("Helsinki", "test")}
    helsinki = {row["group"] for row in kidney if row["site"] == "Helsinki"}
    assert helsinki == {f"FIMM6_14_ML14{i}" for i in range(6)}
    centres = list(csv.DictReader(get("pathorob-camelyon", pause=0.01).table.open(encoding="utf-8")))
    assert len(centres) == 7  # the eighth image is not in the benchmark's table
    assert {row["site"] for row in centres} == {"RUMC", "UMCU"}
    pcam = list(csv.DictReader(get("pcam", pause=0.01).table.open(encoding="utf-8")))
    assert {row["group"] for row in pcam if row["split"] == "val"} == {
        f"camelyon16_valid_{i}" for i in (0, 1)
    }


def test_files_by_form_are_explained(
    server: Habits, data_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", "mhist"]) == 2
    message = capsys.readouterr().err
    assert "https://bmirds.github.io/MHIST/" in message
    assert str(data_home / "mhist" / "downloads") in message
    (data_home / "mhist" / "downloads" / "images.zip").write_bytes(b"not it")
    (data_home / "mhist" / "downloads" / "annotations.csv").write_bytes(b"nor this")
    assert main(["data", "get", "mhist"]) == 2
    assert "486973abb3cf7985df2034701d81e9c1" in capsys.readouterr().err


def test_a_rar_is_read_where_bsdtar_is(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("bsdtar") is None:
        pytest.skip("bsdtar is not installed")
    entry = all_datasets()["lunghist700"]
    # bsdtar looks at the content, so a ZIP stands in for the RAR that no free program writes.
    data = zip_of({f"images/{name}_20x_{i}.jpg": png(i, "JPEG") for name in entry.classes for i in range(2)})
    file = replace(entry.files[0], url=f"{server.address}/r", bytes=len(data))
    server.files["/r"] = data
    monkeypatch.setitem(all_datasets(), "lunghist700", replace(entry, files=(file,), counts={}))
    assert len(load_dataset(get("lunghist700", pause=0.01).table, split="0.5/0.5").splits) == 2


def test_the_verbs_work_as_a_newcomer_would_use_them(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _served("bach", server, data_home, monkeypatch, counts=True)
    assert main(["data", "check", "bach@eva"]) == 2
    assert "histobench data get bach" in capsys.readouterr().err
    assert main(["data", "get", "bach@eva", "--to", str(data_home.parent / "elsewhere")]) == 0
    assert "bach@eva.csv" in capsys.readouterr().out
    assert main(["data", "check", "bach@eva"]) == 0
    assert main(["data", "show", "bach"]) == 0
    assert main(["data", "list", "--organ", "breast"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^bach +yes ", out, re.MULTILINE)
    assert "bracs" in out
    assert main(["data", "remove", "bach"]) == 0
    assert main(["data", "check", "bach@eva"]) == 2
    assert main(["data", "get", "bahc"]) == 2
    assert "did you mean bach" in capsys.readouterr().err
    assert main(["data", "get", "bach@nobody"]) == 2
    assert "bach@eva" in capsys.readouterr().err


def test_a_folder_of_the_users_is_not_removed_with_the_dataset(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served("esca-tolkach", server, data_home, monkeypatch)
    folder = get("esca-tolkach", pause=0.01).folder
    (folder / "my-notes.md").write_text("mine", encoding="utf-8")
    assert main(["data", "remove", "esca-tolkach"]) == 0
    assert [path.name for path in folder.iterdir()] == ["my-notes.md"]


def test_every_entry_is_complete() -> None:
    assert len(catalogue.all_datasets()) >= 33
    for entry in catalogue.all_datasets().values():
        assert entry.citation
        assert entry.homepage.startswith("https://")
        assert len(set(entry.classes)) == len(entry.classes)
        assert len(entry.classes) >= 2
        assert entry.layout
        assert entry.recommended in (None, *entry.splits)
        assert entry.access == "form" or all(file.url for file in entry.files), entry.name
        for file in entry.files:
            assert file.md5 is None or len(file.md5) == 32
            assert file.sha256 is None or len(file.sha256) == 64
            assert file.pinned == (file.confidence is not None), (entry.name, file.name)
        assert set(entry.prompts) <= set(entry.classes)
