"""The files of public datasets in miniature: a few images each, packed as the real ones are."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from PIL import Image

from histobench.roi.registry.dataset_entry import PublicDataset

Files = dict[str, bytes]


def png(seed: int = 0, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


def zip_of(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as box:
        for name, data in members.items():
            box.writestr(name, data)
    return target.getvalue()


def tar_of(members: Mapping[str, bytes], mode: str = "w", links: Mapping[str, str] | None = None) -> bytes:
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
        archive: zip_of(
            {
                f"{archive[:-4]}/{name}/{name}-{i}.tif": png(i, "TIFF")
                for name in entry.classes
                for i in range(3)
            }
        )
        for archive in ("NCT-CRC-HE-100K.zip", "CRC-VAL-HE-7K.zip")
    }


def _bach(entry: PublicDataset) -> Files:
    short = {"Benign": "b", "InSitu": "is", "Invasive": "iv", "Normal": "n"}
    members = {
        f"ICIAR2018_BACH_Challenge/Photos/{name}/{short[name]}{i:03d}.tif": png(1000 * k + i, "TIFF")
        for k, name in enumerate(entry.classes)
        for i in range(1, 101)
    }
    members["ICIAR2018_BACH_Challenge/Photos/microscopy_ground_truth.csv"] = b"b001.tif,Benign\n"
    return {"ICIAR2018_BACH_Challenge.zip": zip_of(members)}


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
        {"image": {"bytes": png(i), "path": None}, "slide_id": f"s{i // 2}", "patch_id": str(i)}
        for i in range(8)
    ]
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), target)
    # The last image is not in the benchmark's table, and the fourth not in its robustness index.
    lines = [
        f"{'OOD' if i == 3 else 'ID'},s{i // 2},{i},{entry.classes[i % 2]},{('RUMC', 'UMCU')[i // 4]}\n"
        for i in range(7)
    ]
    return {"train-00000-of-00001.parquet": target.getvalue(), "camelyon.csv": _pathorob_table(lines)}


def _pathorob_table(lines: list[str]) -> bytes:
    return f"subset,slide_id,patch_id,biological_class,medical_center\n{''.join(lines)}".encode()


def _tolkach_parquet(entry: PublicDataset) -> Files:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [
        {"image": {"bytes": png(i), "path": None}, "slide_id": f"case_{i // 3}", "patch_id": f"a.{i}"}
        for i in range(18)
    ]
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), target)
    lines = [f"ID,case_{i // 3},a.{i},{entry.classes[i % 6]},VALSET{1 + i // 6}\n" for i in range(18)]
    return {
        "train-00000-of-00001.parquet": target.getvalue(),
        "tolkach_esca.csv": _pathorob_table(lines),
        "tolkach_esca_reduced.csv": _pathorob_table(
            [each for i, each in enumerate(lines) if i % 6 != i // 6]
        ),
    }


def _esca(entry: PublicDataset) -> Files:
    return {
        f"{site}.tar": tar_of(
            {
                **{
                    f"{site}/{name}/{name.lower()}.{i}.jpg": png(i, "JPEG")
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
        members[name] = png(i)
    members["metadata.csv"] = (header + "".join(lines)).encode()
    return {"camelyon17_v1.0.tar.gz": tar_of(members, "w:gz")}


def _ccrcc(entry: PublicDataset) -> Files:
    members = {}
    for name in (*entry.classes, "blood"):
        for i in range(6):
            members[f"tissue_classification/{name}/TCGA-B0-47{i:02d}-01Z_{name}Tile {i}.png"] = png(i)
            members[f"tissue_classification/{name}/FIMM6_14_ML14{i}.mrxs_{name}Tile {i}.png"] = png(i)
    return {"tissue_classification.zip": zip_of(members)}


def _mhist(entry: PublicDataset) -> Files:
    rows = [(f"MHIST_{i:03d}.png", entry.classes[i % 2], ("train", "test")[i // 6]) for i in range(12)]
    lines = "".join(f"{name},{label},3,{part}\n" for name, label, part in rows)
    table = (
        f"Image Name,Majority Vote Label,Number of Annotators who Selected SSA (Out of 7),Partition\n{lines}"
    )
    return {
        "images.zip": zip_of({f"images/{name}": png(i) for i, (name, _, _) in enumerate(rows)}),
        "annotations.csv": table.encode(),
    }


def _spider(entry: PublicDataset) -> Files:
    records, members = [], {}
    for i, name in enumerate(entry.classes * 2):
        records.append(
            {"slide_id": f"s{i}", "image_name": f"{i}.png", "class": name, "split": ("train", "test")[i % 2]}
        )
        members[f"{entry.name}/images/{i}.png"] = png(i)
    members[f"{entry.name}/metadata.json"] = json.dumps(records).encode()
    data = tar_of(members)
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
        files[f"fold_{fold}.zip"] = zip_of(members)
    return files


def _chaoyang(entry: PublicDataset) -> Files:
    members: Files = {}
    for part in ("train", "test"):
        records = [{"name": f"{part}/{i}.JPG", "label": i % 4} for i in range(8)]
        members |= {f"{part}/{i}.JPG": png(i, "JPEG") for i in range(8)}
        members[f"{part}.json"] = json.dumps(records).encode()
    # File names repeat in train and test, as they do in many archives.
    return {"chaoyang-data.zip": zip_of(members)}


MADE: dict[str, Callable[[PublicDataset], Files]] = {
    "crc100k": _crc,
    "bach": _bach,
    "pcam": _pcam,
    "pathmnist-28": _npz,
    "pathorob-camelyon": _parquet,
    "pathorob-tolkach-esca": _tolkach_parquet,
    "esca-tolkach": _esca,
    "camelyon17-wilds": _wilds,
    "ccrcc": _ccrcc,
    "mhist": _mhist,
    "spider-colorectal": _spider,
    "pannuke": _pannuke,
    "chaoyang": _chaoyang,
}
