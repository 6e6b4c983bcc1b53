"""Paths in a table may name anything: images are read within bounded memory."""

from __future__ import annotations

import io
from pathlib import Path

import imagecodecs
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


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, white = io.BytesIO(), np.full((120, 110, 3), 60000, np.uint16)
    tifffile.imwrite(buffer, white, photometric="rgb", compression="zlib")
    pictures = [imagecodecs.png_encode(white), buffer.getvalue()]
    for data in pictures:
        open_rgb(data)
    monkeypatch.setattr(images, "_MOST_PIXELS", 10_000)
    monkeypatch.setattr("imagecodecs.png_decode", lambda data: pytest.fail("it was decoded"))
    monkeypatch.setattr(tifffile.TiffPage, "asarray", lambda self: pytest.fail("it was decoded"))
    for data in pictures:
        with pytest.raises(HistobenchError, match="pixels are too many for a tissue region"):
            open_rgb(data)


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
