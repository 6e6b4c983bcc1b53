"""Every kind of image file becomes RGB with the right colours, by other decoders and by formulas."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb

Pixels = NDArray[np.generic]
H, W = 24, 40  # not square, and not a multiple of every block size
RNG = np.random.default_rng(7)
RGB8 = RNG.integers(0, 256, (H, W, 3), dtype=np.uint8)
RGB16 = RNG.integers(0, 65536, (H, W, 3), dtype=np.uint16)
ALPHA8 = RNG.integers(0, 256, (H, W, 1), dtype=np.uint8)
ALPHA16 = RNG.integers(0, 65536, (H, W, 1), dtype=np.uint16)
# Smooth colours, which JPEG keeps well.
SMOOTH = np.stack(
    [
        np.add.outer(np.linspace(a, b, H), np.linspace(0, c, W))
        for a, b, c in ((200, 90, 40), (60, 160, 50), (10, 80, 90))
    ],
    axis=-1,
).astype(np.uint8)


def pixels(data: bytes) -> Pixels:
    image = open_rgb(data)
    assert image.mode == "RGB"
    return np.asarray(image)


def tiff(samples: Pixels, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, samples, **options)
    return buffer.getvalue()


def packs_bits() -> bool:
    """Whether the installed imagecodecs can write samples of 12 bits; older versions only read them."""
    try:
        return bool(imagecodecs.packints_encode(np.zeros((4, 4), np.uint16), 12))
    except NotImplementedError:
        return False


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def grey(samples: Pixels) -> Pixels:
    return np.repeat(samples[..., None], 3, axis=-1)


def to_8_bit(samples: Pixels, peak: int = 65535) -> Pixels:
    return np.rint(samples / peak * 255).astype(np.uint8)


def on_white(colour: Pixels, alpha: Pixels, peak: int) -> Pixels:
    share = alpha / peak
    return np.rint((colour / peak * share + (1 - share)) * 255).astype(np.uint8)


def from_cmyk(cmyk: Pixels, peak: int = 255) -> Pixels:
    ink = cmyk / peak
    return np.rint((1 - ink[..., :3]) * (1 - ink[..., 3:]) * 255).astype(np.uint8)


EXACT = {
    "png rgb": (imagecodecs.png_encode(RGB8), RGB8),
    "png grey": (imagecodecs.png_encode(RGB8[..., 0].copy()), grey(RGB8[..., 0])),
    "png 16-bit rgb": (imagecodecs.png_encode(RGB16), to_8_bit(RGB16)),
    "png 16-bit grey": (imagecodecs.png_encode(RGB16[..., 0].copy()), to_8_bit(grey(RGB16[..., 0]))),
    "png 16-bit rgba": (
        imagecodecs.png_encode(np.concatenate([RGB16, ALPHA16], -1)),
        on_white(RGB16, ALPHA16, 65535),
    ),
    "png 16-bit grey alpha": (
        imagecodecs.png_encode(np.concatenate([RGB16[..., :1], ALPHA16], -1)),
        on_white(grey(RGB16[..., 0]), ALPHA16, 65535),
    ),
    "png black and white": (
        saved(Image.fromarray(RGB8[..., 0] > 99), "PNG"),
        grey(np.where(RGB8[..., 0] > 99, 255, 0).astype(np.uint8)),
    ),
    "tiff rgb": (tiff(RGB8, photometric="rgb"), RGB8),
    "tiff rgb lzw": (tiff(RGB8, photometric="rgb", compression="lzw"), RGB8),
    "tiff rgb planes": (
        tiff(np.ascontiguousarray(RGB8.transpose(2, 0, 1)), photometric="rgb", planarconfig="separate"),
        RGB8,
    ),
    "tiff of several pages": (tiff(np.stack([RGB8, 255 - RGB8]), photometric="rgb"), RGB8),
    "tiff grey": (tiff(RGB8[..., 0]), grey(RGB8[..., 0])),
    "tiff grey, white is zero": (tiff(RGB8[..., 0], photometric="miniswhite"), grey(255 - RGB8[..., 0])),
    "tiff 16-bit rgb": (tiff(RGB16, photometric="rgb"), to_8_bit(RGB16)),
    "tiff 16-bit rgb lzw planes": (
        tiff(
            np.ascontiguousarray(RGB16.transpose(2, 0, 1)),
            photometric="rgb",
            planarconfig="separate",
            compression="lzw",
        ),
        to_8_bit(RGB16),
    ),
    "tiff 16-bit grey": (tiff(RGB16[..., 0]), to_8_bit(grey(RGB16[..., 0]))),
    "tiff 16-bit grey, other byte order": (tiff(RGB16[..., 0], byteorder=">"), to_8_bit(grey(RGB16[..., 0]))),
    "tiff 16-bit rgba": (
        tiff(np.concatenate([RGB16, ALPHA16], -1), photometric="rgb", extrasamples=["unassalpha"]),
        on_white(RGB16, ALPHA16, 65535),
    ),
    "tiff 16-bit cmyk": (
        tiff(np.concatenate([RGB16, ALPHA16], -1), photometric="separated"),
        from_cmyk(np.concatenate([RGB16, ALPHA16], -1), 65535),
    ),
    "tiff rgb with an extra channel that is no alpha": (
        tiff(np.concatenate([RGB8, ALPHA8], -1), photometric="rgb", extrasamples=["unspecified"]),
        RGB8,
    ),
    "tiff black and white": (
        tiff(RGB8[..., 0] > 99, photometric="minisblack"),
        grey(np.where(RGB8[..., 0] > 99, 255, 0).astype(np.uint8)),
    ),
    "bmp": (saved(Image.fromarray(RGB8), "BMP"), RGB8),
}
if packs_bits():
    twelve = RGB16[..., 0] >> 4
    packed = tiff(twelve, bitspersample=12, compression="none")
    EXACT["tiff 12-bit grey"] = packed, to_8_bit(grey(twelve), 4095)


@pytest.mark.parametrize("kind", EXACT)
def test_lossless_files_give_exactly_the_pixels_that_the_formula_gives(kind: str) -> None:
    data, expected = EXACT[kind]
    np.testing.assert_array_equal(pixels(data), expected)


NEAR = {
    "png rgba": (imagecodecs.png_encode(np.concatenate([RGB8, ALPHA8], -1)), on_white(RGB8, ALPHA8, 255)),
    "png grey alpha": (
        imagecodecs.png_encode(np.concatenate([RGB8[..., :1], ALPHA8], -1)),
        on_white(grey(RGB8[..., 0]), ALPHA8, 255),
    ),
    "tiff rgba": (
        tiff(np.concatenate([RGB8, ALPHA8], -1), photometric="rgb", extrasamples=["unassalpha"]),
        on_white(RGB8, ALPHA8, 255),
    ),
    "tiff cmyk": (
        tiff(np.concatenate([RGB8, ALPHA8], -1), photometric="separated"),
        from_cmyk(np.concatenate([RGB8, ALPHA8], -1)),
    ),
}


@pytest.mark.parametrize("kind", NEAR)
def test_mixtures_in_whole_numbers_are_right_to_one_level(kind: str) -> None:
    data, expected = NEAR[kind]
    np.testing.assert_allclose(pixels(data).astype(int), expected.astype(int), atol=1)


def test_associated_alpha_is_laid_on_white() -> None:
    premultiplied = np.rint(RGB8 * (ALPHA8 / 255)).astype(np.uint8)
    data = tiff(np.concatenate([premultiplied, ALPHA8], -1), photometric="rgb", extrasamples=["assocalpha"])
    expected = np.minimum(premultiplied.astype(int) + 255 - ALPHA8, 255)
    np.testing.assert_allclose(pixels(data).astype(int), expected, atol=2)


def test_palettes_are_looked_up_and_an_entry_may_be_transparent() -> None:
    palette = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    index = RGB8[..., 0]
    image = Image.fromarray(index, "L")
    image.putpalette(palette.tobytes())
    for form in ("PNG", "TIFF"):
        np.testing.assert_array_equal(pixels(saved(image, form)), palette[index])
    expected = np.where((index == 5)[..., None], 255, palette[index])
    np.testing.assert_array_equal(pixels(saved(image, "PNG", transparency=5)), expected)
    opacity = RNG.integers(0, 256, 256, dtype=np.uint8)
    found = pixels(saved(image, "PNG", transparency=opacity.tobytes()))
    expected = on_white(palette[index], opacity[index][..., None], 255)
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)


def test_one_colour_may_stand_for_transparent() -> None:
    image = Image.fromarray(RGB8)
    colour = tuple(int(value) for value in RGB8[3, 4])
    found = pixels(saved(image, "PNG", transparency=colour))
    assert tuple(found[3, 4]) == (255, 255, 255)
    other = (RGB8[3, 4] != RGB8).any(axis=-1)
    np.testing.assert_array_equal(found[other], RGB8[other])


def test_a_jpeg_is_decoded_as_another_decoder_does() -> None:
    data = imagecodecs.jpeg8_encode(SMOOTH, level=90, subsampling="444")
    np.testing.assert_allclose(pixels(data).astype(int), imagecodecs.jpeg8_decode(data).astype(int), atol=1)
    data = imagecodecs.jpeg8_encode(SMOOTH[..., 0].copy(), level=90)
    np.testing.assert_allclose(
        pixels(data).astype(int), grey(imagecodecs.jpeg8_decode(data)).astype(int), atol=1
    )


CMYK = np.concatenate([SMOOTH, SMOOTH[::-1, ::-1, :1] // 2], -1)


def without_adobe_marker(data: bytes) -> bytes:
    start = data.index(b"\xff\xee")
    (length,) = struct.unpack(">H", data[start + 2 : start + 4])
    assert data[start + 4 : start + 9] == b"Adobe"
    return data[:start] + data[start + 2 + length :]


@pytest.mark.parametrize("stored_as", ["CMYK", "YCCK"])
def test_a_cmyk_jpeg_of_adobe_is_stored_inverted_and_any_other_as_it_is(stored_as: str) -> None:
    data = imagecodecs.jpeg8_encode(255 - CMYK, level=98, colorspace="CMYK", outcolorspace=stored_as)
    assert b"Adobe" in data
    plain = without_adobe_marker(imagecodecs.jpeg8_encode(CMYK, 98, colorspace="CMYK", outcolorspace="CMYK"))
    for file in (data, plain):
        np.testing.assert_allclose(pixels(file).astype(int), from_cmyk(CMYK).astype(int), atol=5)


def test_a_tiff_may_hold_jpeg() -> None:
    data = tiff(SMOOTH, photometric="rgb", compression="jpeg", compressionargs={"level": 95})
    np.testing.assert_allclose(pixels(data).astype(int), SMOOTH.astype(int), atol=8)


#: What each orientation means, as what must be done to the stored rows and columns.
TURNED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a[::-1].transpose(1, 0, 2),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a[:, ::-1].transpose(1, 0, 2),
}


@pytest.mark.parametrize("orientation", TURNED)
def test_orientation_is_applied_in_every_format(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    turn = TURNED[orientation]
    np.testing.assert_array_equal(pixels(saved(Image.fromarray(RGB8), "PNG", exif=exif)), turn(RGB8))
    jpeg = saved(Image.fromarray(SMOOTH), "JPEG", exif=exif, quality=98, subsampling=0)
    np.testing.assert_allclose(pixels(jpeg).astype(int), turn(SMOOTH).astype(int), atol=6)
    tag = [(274, "H", 1, orientation, True)]
    for options in ({}, {"compression": "lzw"}):
        eight = tiff(RGB8, photometric="rgb", extratags=tag, **options)
        np.testing.assert_array_equal(pixels(eight), turn(RGB8))
        sixteen = tiff(RGB16, photometric="rgb", extratags=tag, **options)
        np.testing.assert_array_equal(pixels(sixteen), turn(to_8_bit(RGB16)))


def test_orientation_is_applied_to_a_16_bit_png() -> None:
    data = imagecodecs.png_encode(RGB16)
    exif = Image.Exif()
    exif[274] = 6
    body = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header_end = 8 + 25  # signature and IHDR
    found = pixels(data[:header_end] + chunk + data[header_end:])
    np.testing.assert_array_equal(found, TURNED[6](to_8_bit(RGB16)))


def test_a_path_gives_what_its_bytes_give(tmp_path: Path) -> None:
    for kind, (data, expected) in EXACT.items():
        path = tmp_path / kind.replace(" ", "_")  # the content counts, not the suffix
        path.write_bytes(data)
        np.testing.assert_array_equal(np.asarray(open_rgb(path)), expected, err_msg=kind)
        np.testing.assert_array_equal(np.asarray(open_rgb(str(path))), expected, err_msg=kind)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tiff(RGB8.astype(np.float32) / 255, photometric="rgb"), "float32 samples"),
        (tiff(RGB8[..., 0].astype(np.float32)), "float32 samples"),
        (tiff(RGB8[..., 0].astype(np.int16)), "int16 samples"),
        (tiff(RGB8[..., 0].astype(np.uint32)), "uint32 samples"),
        (tiff(RGB8, photometric="cielab"), "CIELAB"),
        (tiff(RGB16, photometric="cielab"), "CIELAB"),
        (b"", "the file is empty"),
        (b"hello, I am text", "not a PNG, JPEG or TIFF image"),
        (b"GIF89a" + bytes(40), "not a PNG, JPEG or TIFF image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a PNG, JPEG or TIFF image"),
    ],
)
def test_what_has_no_one_meaning_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(HistobenchError) as caught:
        open_rgb(data, name="slide_7.tif")
    assert str(caught.value).startswith("slide_7.tif: ")
    assert words in str(caught.value)


TRUNCATED = {
    "png": EXACT["png rgb"][0],
    "png 16-bit": EXACT["png 16-bit rgb"][0],
    "jpeg": imagecodecs.jpeg8_encode(RGB8, level=95),
    "progressive jpeg": saved(Image.fromarray(RGB8), "JPEG", progressive=True),
    "tiff": EXACT["tiff rgb"][0],
    "tiff lzw": EXACT["tiff rgb lzw"][0],
    "tiff 16-bit": EXACT["tiff 16-bit rgb"][0],
    "tiff 16-bit lzw": EXACT["tiff 16-bit rgb lzw planes"][0],
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", TRUNCATED)
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    data = TRUNCATED[kind]
    path = tmp_path / "tile.img"
    for keep in (1, 5, 30, len(data) // 4, len(data) // 2, len(data) * 3 // 4, len(data) - 200):
        path.write_bytes(data[:keep])
        with pytest.raises(HistobenchError) as caught:
            open_rgb(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_flipped_bytes_never_give_anything_but_an_image_or_an_error(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for data in TRUNCATED.values():
        for _ in range(25):
            broken = bytearray(data)
            for place in generator.integers(0, min(len(data), 400), size=6):
                broken[place] = int(generator.integers(0, 256))
            try:
                image = open_rgb(bytes(broken))
            except HistobenchError:
                continue
            assert image.mode == "RGB"


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match=r"nowhere.png: the file does not exist"):
        open_rgb(tmp_path / "nowhere.png")
    with pytest.raises(HistobenchError, match="Is a directory"):
        open_rgb(tmp_path)


def test_the_ordinary_case_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(*_: object, **__: object) -> None:
        raise AssertionError("an RGB file was converted or copied")

    for method in ("convert", "copy", "transpose"):
        monkeypatch.setattr(Image.Image, method, copy)
    for form in ("JPEG", "PNG", "TIFF"):
        path = tmp_path / f"tile.{form.lower()}"
        path.write_bytes(saved(Image.fromarray(RGB8), form))
        assert open_rgb(path).size == (W, H)
