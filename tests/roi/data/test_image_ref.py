"""Images are read where they lie: in files, archives and arrays."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import locate
from roi.registry.miniatures import png, tar_of


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_of_a_zip_is_read_in_place(tmp_path: Path, compression: int) -> None:
    data = png() + bytes(2_000)
    with zipfile.ZipFile(tmp_path / "tiles.zip", "w", compression) as box:
        box.writestr("other.txt", "x" * 5_000)
        box.writestr("a/ü.zip/b.png", data)
    ref = locate(tmp_path / "tiles.zip" / "a" / "ü.zip" / "b.png")
    assert ref.file == str(tmp_path / "tiles.zip")
    assert ref.read() == data


def test_a_member_of_a_tar_is_read_in_place(tmp_path: Path) -> None:
    data = png()
    (tmp_path / "tiles.tar").write_bytes(tar_of({"a/b.png": data}))
    assert locate(tmp_path / "tiles.tar" / "a" / "b.png").read() == data


def test_rows_of_arrays_are_pixels(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 9, 3), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    with h5py.File(tmp_path / "pixels.h5", "w") as box:
        box["a/x"] = pixels
    for row in (0, 4):
        for path in (tmp_path / "pixels.npy" / str(row), tmp_path / "pixels.h5" / "a" / "x" / str(row)):
            assert (np.asarray(open_rgb(locate(path).read())) == pixels[row]).all()


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("tiles.zip/no.png", "no member"),
        ("pixels.npy/5", "no member"),
        ("pixels.npy/-1", "no member"),
        ("floats.npy/0", "float64"),
        ("short.npy/0", "truncated"),
        ("broken.zip/a", "cannot read the ZIP"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, member: str, reason: str) -> None:
    zipfile.ZipFile(tmp_path / "tiles.zip", "w").close()
    (tmp_path / "broken.zip").write_bytes(b"no archive")
    np.save(tmp_path / "pixels.npy", np.zeros((5, 2, 2, 3), np.uint8))
    np.save(tmp_path / "floats.npy", np.zeros((5, 2, 2, 3)))
    whole = (tmp_path / "pixels.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-1])
    with pytest.raises(HistobenchError, match=reason):
        locate(tmp_path / member)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_byte_that_changed_in_a_zip_is_noticed(tmp_path: Path, compression: int) -> None:
    archive, pixels = tmp_path / "a.zip", random.Random(0).randbytes(5_000)
    with zipfile.ZipFile(archive, "w", compression) as box:
        box.writestr("a.jpg", pixels)
    assert locate(archive / "a.jpg").read() == pixels
    data = bytearray(archive.read_bytes())
    data[2_500] ^= 1
    archive.write_bytes(data)
    with pytest.raises(OSError, match="damaged"):
        locate(archive / "a.jpg").read()
