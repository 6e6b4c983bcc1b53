"""Decoding straight into an array gives what Pillow gives, or leaves the file to it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms

from histobench.core.errors import HistobenchError
from histobench.roi.data import plain_jpeg
from histobench.roi.data.demo import CLASSES, render_tile
from histobench.roi.data.image import open_rgb
from histobench.roi.data.plain_jpeg import decode_into, plain_size


@pytest.fixture(scope="module")
def tile() -> Image.Image:
    return Image.fromarray(render_tile(CLASSES[0], seed=3, index=0, size=67))


def jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def pixels_of(data: bytes) -> NDArray[np.uint8] | str:
    try:
        return np.asarray(open_rgb(data))
    except HistobenchError as error:
        return str(error)


@pytest.mark.parametrize("size", [(67, 67), (64, 48), (17, 33)])
@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}])
def test_pixels_are_those_of_pillow(
    tile: Image.Image, size: tuple[int, int], sampling: int, options: dict[str, Any]
) -> None:
    data = jpeg(tile.crop((0, 0, *size)), subsampling=sampling, quality=87, **options)
    row = np.zeros((size[1], size[0], 3), np.uint8)
    assert decode_into(data, row)
    np.testing.assert_array_equal(row, np.asarray(Image.open(io.BytesIO(data))))


def test_a_colour_profile_changes_nothing_and_is_no_obstacle(tile: Image.Image) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = jpeg(tile, icc_profile=profile, comment=b"a tile")
    row = np.zeros((67, 67, 3), np.uint8)
    assert decode_into(data, row)
    np.testing.assert_array_equal(row, np.asarray(open_rgb(data)))


def test_what_needs_a_decision_is_left_to_pillow(tile: Image.Image) -> None:
    turned = Image.Exif()
    turned[274] = 6
    others = {
        "turned": jpeg(tile, exif=turned),
        "grey": jpeg(tile.convert("L")),
        "cmyk": jpeg(tile.convert("CMYK")),
        "kept as RGB": jpeg(tile, keep_rgb=True),
        "cut short": jpeg(tile)[:-2],
        "more behind it": jpeg(tile) + b"\0\0",
        "not a JPEG": b"\x89PNG",
        "nothing": b"",
    }
    assert {name: plain_size(data) for name, data in others.items()} == dict.fromkeys(others)
    row = np.zeros((66, 67, 3), np.uint8)
    assert plain_size(jpeg(tile)) == (67, 67)
    assert not decode_into(jpeg(tile), row)  # another size


@pytest.mark.slow
@pytest.mark.parametrize("progressive", [False, True])
def test_of_a_damaged_file_pillow_has_the_last_word(tile: Image.Image, progressive: bool) -> None:
    """Whatever is taken has the pixels that Pillow gives; what Pillow refuses is never taken."""
    rng = np.random.default_rng(int(progressive))
    taken = refused = 0
    for number in range(300):
        data = jpeg(tile, quality=int(rng.integers(40, 97)), progressive=progressive)
        first, last = sorted(rng.integers(2, len(data) - 2, 2))
        if number % 3 == 0:
            data = data[:last]
        elif number % 3 == 1:
            data = data[:first] + data[last:]
        else:
            damaged = bytearray(data)
            for place in rng.integers(0, len(data), 4):
                damaged[place] = int(rng.integers(0, 256))
            data = bytes(damaged)
        row = np.zeros((67, 67, 3), np.uint8)
        expected = pixels_of(data)
        refused += isinstance(expected, str)
        if decode_into(data, row):
            taken += 1
            np.testing.assert_array_equal(row, expected)
    assert taken > 20
    assert refused > 100


def test_a_decoder_that_gives_other_pixels_is_not_used(
    tile: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    import imagecodecs

    right = imagecodecs.jpeg8_decode
    monkeypatch.setattr(imagecodecs, "jpeg8_decode", lambda data: right(data) ^ 1)
    monkeypatch.setattr(plain_jpeg, "agreeing_codec", plain_jpeg.agreeing_codec.__wrapped__)
    assert not decode_into(jpeg(tile), np.zeros((67, 67, 3), np.uint8))
