"""Paths in a table may name anything: images are read within bounded memory."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile

from histobench.core.errors import HistobenchError
from histobench.roi.data import image as images
from histobench.roi.data.image import NOTE, open_rgb


def test_a_file_without_end_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "sparse.png").open("wb") as handle:
        handle.truncate(3 << 30)
    with pytest.raises(HistobenchError, match="too much for a tissue region"):
        open_rgb(tmp_path / "sparse.png")


def deep_png(side: int) -> bytes:
    """A 16-bit RGB PNG of one colour, as small as such files get."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(9)
    row = b"\0" + struct.pack(">HHH", 65535, 32896, 0) * side
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.full((120, 100), 60000, np.uint16), compression="zlib")
    pictures = {"png": deep_png(110), "tiff": buffer.getvalue()}
    for data in pictures.values():
        open_rgb(data)
    monkeypatch.setattr(images, "_MOST_PIXELS", 10_000)
    monkeypatch.setattr("imagecodecs.png_decode", lambda data: pytest.fail("it was decoded"))
    monkeypatch.setattr(tifffile.TiffPage, "asarray", lambda self: pytest.fail("it was decoded"))
    for data in pictures.values():
        with pytest.raises(HistobenchError, match="pixels are too many for a tissue region"):
            open_rgb(data)


@pytest.mark.slow
@pytest.mark.nightly
def test_deep_images_are_converted_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "deep.png").write_bytes(deep_png(4000))  # 96 MB of samples; eight bytes each were 384
    code = (
        "import resource, sys; from histobench.roi.data.image import open_rgb; import numpy, imagecodecs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "image = open_rgb(sys.argv[1]); print(image.getpixel((3999, 3999)))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "deep.png")], capture_output=True, text=True, check=True
    )
    pixel, kilobytes = done.stdout.splitlines()
    assert pixel == "(255, 128, 0)"
    assert int(kilobytes) < 330_000


def tiff(samples: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, samples, photometric="rgb", **options)
    return buffer.getvalue()


RAMP = np.linspace(0, 4095, 32 * 32 * 3).round().astype(np.uint16).reshape(32, 32, 3)


def test_twelve_bits_in_sixteen_are_not_black(caplog: pytest.LogCaptureFixture) -> None:
    images._said.clear()
    picture = open_rgb(tiff(RAMP))
    np.testing.assert_array_equal(np.asarray(picture), np.rint(RAMP / 4095 * 255))
    assert "read as 12-bit data" in picture.info[NOTE]
    open_rgb(tiff(RAMP))
    assert caplog.text.count("read as 12-bit data") == 1


def test_what_the_file_says_about_white_counts() -> None:
    declared = tiff(RAMP, extratags=[(281, "H", 3, (8191, 8191, 8191), True)])
    picture = open_rgb(declared)
    np.testing.assert_array_equal(np.asarray(picture), np.rint(RAMP / 8191 * 255))
    assert NOTE not in picture.info
    dark = tiff(RAMP, extratags=[(281, "H", 3, (65535,) * 3, True)])
    np.testing.assert_array_equal(np.asarray(open_rgb(dark)), np.rint(RAMP / 65535 * 255))


def test_true_sixteen_bits_stay_exact() -> None:
    samples = np.random.default_rng(0).integers(0, 65536, (40, 30, 3)).astype(np.uint16)
    picture = open_rgb(tiff(samples))
    np.testing.assert_array_equal(np.asarray(picture), (samples.astype(np.int64) + 128) // 257)
    assert NOTE not in picture.info
