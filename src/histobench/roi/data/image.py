"""Any PNG, JPEG or TIFF as an 8-bit RGB image with the right colours and the right side up."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: What Pillow may try; the list keeps programs that draw (EPS, WMF) out of reach of a file's content.
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "JPEG2000", "PPM")
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
#: More is no tissue region, or a damaged header that asks for more memory than there is.
_MOST_PIXELS = 150_000_000
#: What the TIFF reader has to say about a damaged file is in its error, too; it need not be on the terminal.
_SILENT = logging.NullHandler()
_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _ORIENTATION = 258, 339, 274


def open_rgb(source: str | Path | bytes, *, name: str | None = None) -> Image.Image:
    """Decode an image file, or its bytes, to a Pillow RGB image; `name` stands for bytes in messages.

    Transparency is laid on white; 16 bits become 8 by v / 257, rounded; CMYK becomes RGB by the plain
    formula (1 - C)(1 - K); EXIF orientation is applied. Colour profiles are not: encoders were trained
    without them. Of a file with several pages the first is read.
    """
    label = name or ("image" if isinstance(source, bytes) else str(source))
    try:
        return _open(source)
    except MemoryError:
        raise  # says nothing about the file
    except HistobenchError as error:
        raise HistobenchError(f"{label}: {error}") from error
    except FileNotFoundError as error:
        raise HistobenchError(f"{label}: the file does not exist") from error
    except Exception as error:  # decoders meet arbitrary bytes and raise arbitrary errors
        raise HistobenchError(f"{label}: {_reason(source, error)}") from error


def _open(source: str | Path | bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
    except UnidentifiedImageError:
        if _head(source, 4) in _TIFF_MAGIC:
            return _open_tiff(source)
        raise
    with image:
        if image.format == "TIFF" and not _is_plain_tiff(image):
            return _open_tiff(source)
        if image.format == "PNG" and image.tile and str(image.tile[0][3]).endswith("16B"):
            rgb = _open_deep_png(source)
            return _oriented(rgb, image.getexif().get(_ORIENTATION, 1))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image)


def _rgb(image: Image.Image) -> Image.Image:
    """The loaded 8-bit image as RGB; the same object when it is RGB already."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", rgba.size, "white")
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    if image.mode == "RGB":
        return image
    if image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info:
        # Adobe's programs store CMYK inverted and say so with a marker; Pillow inverts without looking.
        image = ImageChops.invert(image)
    if image.mode in ("1", "L", "P", "CMYK", "YCbCr"):
        return image.convert("RGB")
    raise HistobenchError(f"pixels of kind {image.mode} are not supported; save the image as 8-bit RGB")


def _oriented(image: Image.Image, orientation: int) -> Image.Image:
    exif = image.getexif()
    exif[_ORIENTATION] = orientation
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _is_plain_tiff(image: Image.Image) -> bool:
    """Whether Pillow decodes this TIFF exactly: whole samples of 1 or 8 bits in a colour space it knows."""
    tags = image.tag_v2  # type: ignore[attr-defined]
    bits, formats = tags.get(_BITS_PER_SAMPLE, (1,)), tags.get(_SAMPLE_FORMAT, (1,))
    return set(bits) <= {1, 8} and set(formats) == {1} and image.mode != "LAB"


def _open_tiff(source: str | Path | bytes) -> Image.Image:
    import tifffile

    tifffile.logger().addHandler(_SILENT)
    with tifffile.TiffFile(io.BytesIO(source) if isinstance(source, bytes) else source) as tiff:
        page = tiff.pages[0]
        if page.size > 4 * _MOST_PIXELS:
            raise HistobenchError(f"{page.imagewidth} x {page.imagelength} pixels; cut it into tiles first")
        samples = page.asarray()
        orientation = page.tags.valueof(_ORIENTATION, default=1)
        photometric = getattr(page.photometric, "name", str(page.photometric))
        alpha = [kind.name for kind in map(tifffile.EXTRASAMPLE, page.extrasamples)]
        if page.axes.startswith("S"):
            samples = samples.transpose(1, 2, 0)
    return _oriented(_from_samples(samples, page.bitspersample, photometric, alpha), int(orientation))


def _open_deep_png(source: str | Path | bytes) -> Image.Image:
    import imagecodecs

    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    samples = imagecodecs.png_decode(data)
    channels = 1 if samples.ndim == 2 else samples.shape[2]
    alpha = ["UNASSALPHA"] if channels in (2, 4) else []
    return _from_samples(samples, 16, "RGB" if channels >= 3 else "MINISBLACK", alpha)


def _from_samples(samples: NDArray[np.generic], bits: int, photometric: str, extra: list[str]) -> Image.Image:
    """Samples [h, w] or [h, w, s] of any whole-number depth up to 16 bits as an RGB image."""
    import numpy as np

    if samples.dtype.kind not in "ub" or bits > 16:
        raise HistobenchError(
            f"{samples.dtype} samples have no agreed black and white; save the image with 8 or 16 bits"
        )
    if samples.ndim not in (2, 3):
        raise HistobenchError(f"an array of shape {samples.shape} is not an image")
    light = np.atleast_3d(samples).astype(np.float64) / (2**bits - 1)
    colours = light.shape[2] - len(extra)
    if photometric in ("MINISBLACK", "MINISWHITE") and colours == 1:
        rgb = light[..., :1] if photometric == "MINISBLACK" else 1 - light[..., :1]
    elif photometric in ("RGB", "YCBCR") and colours == 3:
        rgb = light[..., :3]
    elif photometric == "SEPARATED" and colours == 4:
        rgb = (1 - light[..., :3]) * (1 - light[..., 3:4])
    else:
        raise HistobenchError(
            f"TIFF with {colours} channels of kind {photometric} is not supported; save it as 8-bit RGB"
        )
    for index, kind in enumerate(extra):
        alpha = light[..., colours + index, None]
        if kind == "UNASSALPHA":
            rgb = rgb * alpha + (1 - alpha)
        elif kind == "ASSOCALPHA":
            rgb = np.minimum(rgb + (1 - alpha), 1)
    pixels = np.rint(rgb * 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))))


def _head(source: str | Path | bytes, count: int) -> bytes:
    if isinstance(source, bytes):
        return source[:count]
    with open(source, "rb") as handle:
        return handle.read(count)


def _reason(source: str | Path | bytes, error: Exception) -> str:
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not an image"
    if isinstance(error, PermissionError):
        return "no permission to read the file"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large to be a tissue region ({error}); cut it into tiles first"
    if isinstance(error, UnidentifiedImageError):
        return "not a PNG, JPEG or TIFF image" if _head(source, 1) else "the file is empty"
    detail = " ".join(str(error).split()) or type(error).__name__
    return f"the image is damaged or cut short ({detail})"
