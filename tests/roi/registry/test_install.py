"""`histobench data get` end to end, from a local server, for every layout of the registry."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import locate
from histobench.roi.data.load import load_dataset
from histobench.roi.registry import catalogue, transfer
from histobench.roi.registry.catalogue import all_datasets
from histobench.roi.registry.entry import PublicDataset
from histobench.roi.registry.install import get
from histobench.roi.registry.pixel_arrays import hdf5_images

from .conftest import Habits

pytestmark = pytest.mark.slow

Files = dict[str, bytes]


def _png(seed: int = 0, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


def _zip(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as box:
        for name, data in members.items():
            box.writestr(name, data)
    return target.getvalue()


def _tar(members: Mapping[str, bytes], mode: str = "w", links: Mapping[str, str] | None = None) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as box:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            box.addfile(info, io.BytesIO(data))
        for name, where in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, where
            box.addfile(info)
    return target.getvalue()


def _crc(entry: PublicDataset) -> Files:
    return {
        archive: _zip(
            {
                f"{archive[:-4]}/{name}/{name}-{i}.tif": _png(i, "TIFF")
                for name in entry.classes
                for i in range(3)
            }
        )
        for archive in ("NCT-CRC-HE-100K.zip", "CRC-VAL-HE-7K.zip")
    }


def _bach(entry: PublicDataset) -> Files:
    short = {"Benign": "b", "InSitu": "is", "Invasive": "iv", "Normal": "n"}
    members = {
        f"ICIAR2018_BACH_Challenge/Photos/{name}/{short[name]}{i:03d}.tif": _png(1000 * k + i, "TIFF")
        for k, name in enumerate(entry.classes)
        for i in range(1, 101)
    }
    members["ICIAR2018_BACH_Challenge/Photos/microscopy_ground_truth.csv"] = b"b001.tif,Benign\n"
    return {"ICIAR2018_BACH_Challenge.zip": _zip(members)}


def _pcam(entry: PublicDataset) -> Files:
    h5py = pytest.importorskip("h5py")
    files: Files = {}
    for word, chunked in (("train", None), ("valid", (1, 8, 8, 3)), ("test", None)):
        for key, array in (
            ("x", np.random.default_rng(1).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)),
            ("y", np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1) % 2),
        ):
            target = io.BytesIO()
            with h5py.File(target, "w") as box:
                box.create_dataset(key, data=array, chunks=chunked if key == "x" else None)
            files[f"camelyonpatch_level_2_split_{word}_{key}.h5.gz"] = gzip.compress(target.getvalue())
        lines = "".join(f"{i},camelyon16_{word}_{i // 2}\n" for i in range(4))
        files[f"camelyonpatch_level_2_split_{word}_meta.csv"] = f"coord_x,wsi\n{lines}".encode()
    return files


def _npz(entry: PublicDataset) -> Files:
    target = io.BytesIO()
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = np.random.default_rng(2).integers(0, 256, (18, 8, 8, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(18).reshape(-1, 1) % 9
    np.savez_compressed(target, **arrays)  # type: ignore[arg-type]
    return {"pathmnist.npz": target.getvalue()}


def _parquet(entry: PublicDataset) -> Files:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [
        {"image": {"bytes": _png(i), "path": None}, "slide_id": f"s{i // 2}", "patch_id": str(i)}
        for i in range(8)
    ]
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), target)
    lines = "".join(f"ID,s{i // 2},{i},{entry.classes[i % 2]},{('RUMC', 'UMCU')[i // 4]}\n" for i in range(7))
    table = f"subset,slide_id,patch_id,biological_class,medical_center\n{lines}"
    return {"train-00000-of-00001.parquet": target.getvalue(), "camelyon.csv": table.encode()}


def _tils(entry: PublicDataset) -> Files:
    top = "TCGA-TILs/images-tcga-tils"
    members = {
        f"{top}/brca/{split}/{name}/TCGA-A2-A0{i}X-{i}.png": _png(i)
        for split in ("train", "val", "test")
        for name in entry.classes
        for i in range(2)
    }
    links = {
        f"{top}/pancancer/train/{entry.classes[0]}/x.png": f"../../../brca/train/{entry.classes[0]}/x.png"
    }
    return {"TCGA-TILs.tar.gz": _tar(members, "w:gz", links)}


def _esca(entry: PublicDataset) -> Files:
    return {
        f"{site}.tar": _tar(
            {
                **{
                    f"{site}/{name}/{name.lower()}.{i}.jpg": _png(i, "JPEG")
                    for name in entry.classes
                    for i in (0, 1)
                },
                f"{site}/SH_MAG/._sh_mag.0.jpg": b"rubbish",
            }
        )
        for site in ("VALSET1_UKK", "VALSET2_WNS", "VALSET3_TCGA", "VALSET4_CHA_FULL")
    }


def _wilds(entry: PublicDataset) -> Files:
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split\n"
    lines, members = [], {}
    for i in range(10):
        patient, centre = f"{i:03d}", i // 2
        lines.append(f"{i},{patient},{i % 5},{i},{2 * i},{i % 2},{i},{centre},0\n")
        name = (
            f"patches/patient_{patient}_node_{i % 5}/patch_patient_{patient}_node_{i % 5}_x_{i}_y_{2 * i}.png"
        )
        members[name] = _png(i)
    members["metadata.csv"] = (header + "".join(lines)).encode()
    return {"camelyon17_v1.0.tar.gz": _tar(members, "w:gz")}


def _ccrcc(entry: PublicDataset) -> Files:
    members = {}
    for name in (*entry.classes, "blood"):
        for i in range(6):
            members[f"tissue_classification/{name}/TCGA-B0-47{i:02d}-01Z_{name}Tile {i}.png"] = _png(i)
            members[f"tissue_classification/{name}/FIMM6_14_ML14{i}.mrxs_{name}Tile {i}.png"] = _png(i)
    return {"tissue_classification.zip": _zip(members)}


def _mhist(entry: PublicDataset) -> Files:
    rows = [(f"MHIST_{i:03d}.png", entry.classes[i % 2], ("train", "test")[i // 6]) for i in range(12)]
    lines = "".join(f"{name},{label},3,{part}\n" for name, label, part in rows)
    table = (
        f"Image Name,Majority Vote Label,Number of Annotators who Selected SSA (Out of 7),Partition\n{lines}"
    )
    return {
        "images.zip": _zip({f"images/{name}": _png(i) for i, (name, _, _) in enumerate(rows)}),
        "annotations.csv": table.encode(),
    }


def _spider(entry: PublicDataset) -> Files:
    records, members = [], {}
    for i, name in enumerate(entry.classes * 2):
        records.append(
            {"slide_id": f"s{i}", "image_name": f"{i}.png", "class": name, "split": ("train", "test")[i % 2]}
        )
        members[f"{entry.name}/images/{i}.png"] = _png(i)
    members[f"{entry.name}/metadata.json"] = json.dumps(records).encode()
    data = _tar(members)
    middle = len(data) // 2
    return {f"{entry.name}.tar.00": data[:middle], f"{entry.name}.tar.01": data[middle:]}


def _pannuke(entry: PublicDataset) -> Files:
    files = {}
    for fold in (1, 2, 3):
        pixels, types = io.BytesIO(), io.BytesIO()
        np.save(pixels, np.random.default_rng(fold).integers(0, 256, (19, 4, 4, 3)).astype(np.float64))
        np.save(types, np.array(entry.classes))
        members = {f"Fold {fold}/images/fold{fold}/images.npy": pixels.getvalue()}
        members[f"Fold {fold}/images/fold{fold}/types.npy"] = types.getvalue()
        files[f"fold_{fold}.zip"] = _zip(members)
    return files


def _chaoyang(entry: PublicDataset) -> Files:
    members: Files = {}
    for part in ("train", "test"):
        records = [{"name": f"{part}/{i}.JPG", "label": i % 4} for i in range(8)]
        members |= {f"{part}/{i}.JPG": _png(i, "JPEG") for i in range(8)}
        members[f"{part}.json"] = json.dumps(records).encode()
    # File names repeat in train and test, as they do in many archives.
    return {"chaoyang-data.zip": _zip(members)}


MADE: dict[str, Callable[[PublicDataset], Files]] = {
    "crc100k": _crc,
    "bach": _bach,
    "pcam": _pcam,
    "pathmnist-28": _npz,
    "pathorob-camelyon": _parquet,
    "tcga-tils": _tils,
    "esca-tolkach": _esca,
    "camelyon17-wilds": _wilds,
    "ccrcc": _ccrcc,
    "mhist": _mhist,
    "spider-colorectal": _spider,
    "pannuke": _pannuke,
    "chaoyang": _chaoyang,
}


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
        assert {(row["split"], row["image_path"].split("/")[-2]) for row in rows} == {
            ("train", "train"),
            ("test", "test"),
        }
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


def test_groups_and_sites_come_with_the_table(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("camelyon17-wilds", "ccrcc", "pathorob-camelyon", "pcam"):
        _served(name, server, data_home, monkeypatch)
    wilds = list(csv.DictReader(get("camelyon17-wilds", pause=0.01).table.open(encoding="utf-8")))
    assert {(row["site"], row["split"]) for row in wilds} == {
        ("0", "train"),
        ("3", "train"),
        ("4", "train"),
        ("1", "val"),
        ("2", "test"),
    }
    kidney = list(csv.DictReader(get("ccrcc", pause=0.01).table.open(encoding="utf-8")))
    assert {(row["site"], row["split"]) for row in kidney} == {("TCGA", "train"), ("Helsinki", "test")}
    assert {row["group"] for row in kidney if row["site"] == "Helsinki"} == {
        f"FIMM6_14_ML14{i}" for i in range(6)
    }
    centres = list(csv.DictReader(get("pathorob-camelyon", pause=0.01).table.open(encoding="utf-8")))
    assert len(centres) == 7  # the eighth image is not in the benchmark's table
    assert {row["site"] for row in centres} == {"RUMC", "UMCU"}
    pcam = list(csv.DictReader(get("pcam", pause=0.01).table.open(encoding="utf-8")))
    assert {row["group"] for row in pcam if row["split"] == "val"} == {
        "camelyon16_valid_0",
        "camelyon16_valid_1",
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


def _pathmnist(**other: Any) -> bytes:
    arrays: dict[str, Any] = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = np.zeros((18, 8, 8, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(18).reshape(-1, 1) % 9
    target = io.BytesIO()
    np.savez(target, **{name: array for name, array in {**arrays, **other}.items() if array is not None})
    return target.getvalue()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"val_labels": np.arange(18) % 9 - 1}, "labels from -1 to 7"),
        ({"val_labels": np.arange(18)}, "labels from 0 to 17"),
        ({"val_labels": np.arange(18) / 2}, "whole numbers, not float64"),
        ({"val_labels": np.arange(17) % 9}, "17 labels for 18 images"),
        ({"val_images": np.zeros((18, 8, 8), np.uint8)}, r"shape \(18, 8, 8\)"),
        ({"val_images": np.full((18, 8, 8, 3), 0.5)}, "not whole numbers"),
        ({"val_images": np.full((18, 8, 8, 3), np.nan)}, "no numbers"),
        ({"val_images": np.full((18, 8, 8, 3), 300)}, "between 0 and 255"),
        ({"val_images": np.array([{}] * 18, dtype=object)}, "allow_pickle"),
        ({"val_images": None}, "another form"),
    ],
)
def test_arrays_of_another_form_are_told(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], message: str
) -> None:
    _served("pathmnist-28", server, data_home, monkeypatch)
    entry = all_datasets()["pathmnist-28"]
    monkeypatch.setitem(
        all_datasets(), "pathmnist-28", replace(entry, files=(replace(entry.files[0], bytes=None),))
    )
    server.files["/pathmnist.npz"] = _pathmnist(**other)
    with pytest.raises(HistobenchError, match=message):
        get("pathmnist-28", pause=0.01)
    assert not list(data_home.rglob("*.tmp"))
    assert not list(data_home.rglob("dataset.json"))


def test_a_name_that_fits_into_no_table_is_told(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served("esca-tolkach", server, data_home, monkeypatch)
    entry = all_datasets()["esca-tolkach"]
    made = [replace(file, bytes=None) for file in entry.files]
    monkeypatch.setitem(all_datasets(), "esca-tolkach", replace(entry, files=tuple(made)))
    first = "VALSET1_UKK"
    server.files[f"/{first}.tar"] = _tar({f"{first}/{entry.classes[0]}/\udcff.0.jpg": _png(0, "JPEG")})
    with pytest.raises(HistobenchError, match="is not UTF-8"):
        get("esca-tolkach", pause=0.01)


def test_an_hdf5_file_is_not_followed_to_others(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as box:
        box["link"] = h5py.ExternalLink("/etc/passwd", "/x")
        place = [(str(tmp_path / "elsewhere"), 0, 4 * 8 * 8 * 3)]
        box.create_dataset("far", shape=(4, 8, 8, 3), dtype="u1", external=place)
        box.create_dataset("endless", shape=(10**9, 8, 8, 3), dtype="u1", chunks=(1, 8, 8, 3))
        box.create_dataset("words", data=["a", "b"])
    for key, message in (
        ("link", "of its own"),
        ("far", "another file"),
        ("endless", "bomb"),
        ("words", "no numbers"),
        ("absent", "of its own"),
    ):
        with pytest.raises(HistobenchError, match=message):
            hdf5_images(tmp_path / "a.h5", key, tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_is_one_line(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    _served("esca-tolkach", server, data_home, monkeypatch)
    monkeypatch.setattr(transfer, "_append", refuse)
    with pytest.raises(HistobenchError, match=r"(disk is full|Read-only).*what has arrived is kept"):
        get("esca-tolkach", pause=0.01)


def test_two_that_fetch_the_same_wait_for_each_other(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _served("esca-tolkach", server, data_home, monkeypatch)
    server.slow = 0.02
    with ThreadPoolExecutor(2) as pool:
        found = [job.result(60) for job in [pool.submit(get, "esca-tolkach", pause=0.01) for _ in range(2)]]
    assert found[0] == found[1]
    assert len(server.seen) == len(all_datasets()["esca-tolkach"].files)


def test_a_rar_is_read_where_bsdtar_is(
    server: Habits, data_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("bsdtar") is None:
        pytest.skip("bsdtar is not installed")
    entry = all_datasets()["lunghist700"]
    # bsdtar looks at the content, so a ZIP stands in for the RAR that no free program writes.
    data = _zip({f"images/{name}_20x_{i}.jpg": _png(i, "JPEG") for name in entry.classes for i in range(2)})
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
    assert "bach *" in out
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
    assert len(catalogue.all_datasets()) >= 30
    for entry in catalogue.all_datasets().values():
        assert entry.citation
        assert entry.homepage.startswith("https://")
        assert len(set(entry.classes)) == len(entry.classes) >= 2
        assert entry.access == "form" or all(file.url for file in entry.files), entry.name
        for file in entry.files:
            assert file.md5 is None or len(file.md5) == 32
            assert file.sha256 is None or len(file.sha256) == 64
            assert file.pinned == (file.confidence is not None), (entry.name, file.name)
        assert set(entry.prompts) <= set(entry.classes)
