"""Any PNG, JPEG or TIFF as an 8-bit RGB image with the right colours and the right side up."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import locate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger(__name__)
#: What Pillow may try; the list keeps programs that draw (EPS, WMF) out of reach of a file's content.
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "JPEG2000", "PPM")
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
#: More is no tissue region, or a damaged header that asks for more memory than there is.
_MOST_PIXELS = 150_000_000
#: What the TIFF reader has to say about a damaged file is in its error, too; it need not be on the terminal.
_SILENT = logging.NullHandler()
_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _ORIENTATION = 258, 339, 274
_MAX_SAMPLE_VALUE, _S_MAX_SAMPLE_VALUE = 281, 341
#: The highest value of a 12-bit camera, whose samples are often stored as they are in 16 bits.
_TWELVE_BITS = 4095
_BLOCK = 2**20
#: Key of a Pillow image's `info`: what was assumed to read it, in words.
NOTE = "histobench_note"
#: Kinds of such notes that this process has warned of.
_said: set[str] = set()


def open_rgb(source: str | Path | bytes, *, name: str | None = None) -> Image.Image:
    """Decode an image file (also one in a container, see `locate`), or its bytes, to a Pillow RGB image.

    `name` stands for bytes in messages.

    Transparency is laid on white; 16 bits become 8 by v / 257, rounded; CMYK becomes RGB by the plain
    formula (1 - C)(1 - K); EXIF orientation is applied. Colour profiles are not: encoders were trained
    without them. Of a file with several pages the first is read. White of a 16-bit TIFF is what its
    MaxSampleValue says; where it says nothing and no sample is above 4095, the samples are taken for those
    of a 12-bit camera, which is said once and in the image's `info`.
    """
    label = name or ("image" if isinstance(source, bytes) else str(source))
    try:
        image = _open(source if isinstance(source, bytes) else locate(source).read())
        if NOTE in image.info:
            _say_once(label, image.info[NOTE])
        return image
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # decoders meet arbitrary bytes and raise arbitrary errors
        raise HistobenchError(f"{label}: {_reason(source, error)}") from error


def picture_rgb(picture: Image.Image) -> Image.Image:
    """An opened Pillow image by the rules for files (see `open_rgb`); the picture itself stays as it is."""
    try:
        content = _unread_samples(picture)
        if content is not None:
            image = _open(content)
            picture.load()  # for its owner, who need not close the file then
            if NOTE in image.info:
                _say_once("a picture", image.info[NOTE])
            return image
        picture.load()
        if not picture.width * picture.height:
            raise HistobenchError("the picture has no pixels")
        _check_pixels(picture.width, picture.height)
        if picture.mode.startswith("I;16"):
            import numpy as np

            return array_rgb(np.asarray(ImageOps.exif_transpose(picture)).astype(np.uint16))
        return _rgb(ImageOps.exif_transpose(picture), picture.format)
    except MemoryError:
        raise
    except Exception as error:  # the rest of the file may hold anything
        raise HistobenchError(_reason(b" ", error)) from error


def check_image_array(samples: NDArray[np.generic]) -> None:
    if samples.dtype.name not in ("uint8", "uint16"):
        raise HistobenchError(
            f"{samples.dtype} samples have no agreed black and white; give uint8 from 0 to 255 or uint16"
        )
    if samples.ndim not in (2, 3) or (samples.ndim == 3 and samples.shape[2] not in (1, 2, 3, 4)):
        first = samples.ndim == 3 and samples.shape[0] in (1, 3, 4)
        hint = "; the channels come last: give x.transpose(1, 2, 0)" if first else ""
        raise HistobenchError(
            f"expected an image of shape [height, width, 3], found {tuple(samples.shape)}{hint}"
        )
    if not samples.size:
        raise HistobenchError(f"an image of shape {tuple(samples.shape)} has no pixels")
    _check_pixels(samples.shape[1], samples.shape[0])


def array_rgb(samples: NDArray[np.generic]) -> Image.Image:
    """Samples [h, w] of grey, [h, w, 3] of colour, [h, w, 2 or 4] with transparency; 8 or 16 bits each."""
    check_image_array(samples)
    channels = 1 if samples.ndim == 2 else samples.shape[2]
    if samples.dtype.name == "uint8":
        return _rgb(Image.fromarray(samples if channels > 1 else samples.reshape(samples.shape[:2])))
    alpha = ["UNASSALPHA"] if channels in (2, 4) else []
    return _from_samples(samples, 2**16 - 1, "RGB" if channels >= 3 else "MINISBLACK", alpha)


def _say_once(label: str, note: str) -> None:
    """Warn of the first image of a kind; a set of them would say the same thousands of times."""
    kind = note.partition(";")[0]
    if kind not in _said:
        _said.add(kind)
        log.warning("%s: %s (shown once; other images may be affected)", label, note)


def _check_pixels(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise HistobenchError(
            f"{width:,} x {height:,} pixels are too many for a tissue region; cut it into tiles first"
        )


def _open(source: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is checked below
            image = Image.open(io.BytesIO(source), formats=_FORMATS)
    except UnidentifiedImageError:
        if source[:4] in _TIFF_MAGIC:
            return _open_tiff(source)
        raise
    with image:
        _check_pixels(image.width, image.height)
        if image.format == "TIFF" and not _is_plain_tiff(image):
            return _open_tiff(source)
        if image.format == "PNG" and image.tile and str(image.tile[0][3]).endswith("16B"):
            import imagecodecs

            return _oriented(array_rgb(imagecodecs.png_decode(source)), image.getexif().get(_ORIENTATION, 1))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image, image.format)


def _rgb(image: Image.Image, format: str | None = None) -> Image.Image:
    """The loaded 8-bit image of a file of this format as RGB; the same object when it is RGB already."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", rgba.size, "white")
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    if image.mode == "RGB":
        return image
    if image.mode == "CMYK" and format in ("JPEG", "MPO") and "adobe" not in image.info:
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


def _open_tiff(source: bytes) -> Image.Image:
    import tifffile

    tifffile.logger().addHandler(_SILENT)
    with tifffile.TiffFile(io.BytesIO(source)) as tiff:
        page = tiff.pages[0]
        _check_pixels(page.imagewidth, page.imagelength)
        if page.dtype is None or page.dtype.kind not in "ub" or page.bitspersample > 16:
            raise HistobenchError(
                f"{page.dtype} samples have no agreed black and white; save the image with 8 or 16 bits"
            )
        samples = page.asarray()
        declared = [page.tags.valueof(tag) for tag in (_MAX_SAMPLE_VALUE, _S_MAX_SAMPLE_VALUE)]
        orientation = page.tags.valueof(_ORIENTATION, default=1)
        photometric = getattr(page.photometric, "name", str(page.photometric))
        alpha = [kind.name for kind in map(tifffile.EXTRASAMPLE, page.extrasamples)]
        if page.axes.startswith("S"):
            samples = samples.transpose(1, 2, 0)
    white, note = _white(samples, page.bitspersample, [value for value in declared if value is not None])
    image = _oriented(_from_samples(samples, white, photometric, alpha), int(orientation))
    if note:
        image.info[NOTE] = note
    return image


def _white(samples: NDArray[np.generic], bits: int, declared: list[object]) -> tuple[int, str]:
    """The sample value that is white, and what has to be said about it."""
    import numpy as np

    full = 2**bits - 1
    if bits != 16 or samples.dtype.kind != "u" or not samples.size:
        return full, ""
    highest = int(samples.max())
    for value in declared:
        least = min(int(v) for v in np.atleast_1d(np.asarray(value)).tolist() if v is not None)
        if max(highest, 1) <= least < full:
            return least, ""  # the file says so itself
    if not declared and 0 < highest <= _TWELVE_BITS:
        return _TWELVE_BITS, (
            f"a 16-bit TIFF without a sample above {_TWELVE_BITS} is read as 12-bit data; if it really is "
            "that dark, set its tag MaxSampleValue to 65535"
        )
    return full, ""


def _unread_samples(picture: Image.Image) -> bytes | None:
    """The file of a picture of 16 bits that was opened and no more: Pillow would keep eight of them."""
    tiles, file = getattr(picture, "tile", None), getattr(picture, "fp", None)
    if picture.format not in ("PNG", "TIFF") or not tiles or file is None or picture.tell():
        return None
    if "16" not in str(tiles[0][3]):
        return None
    place = file.tell()
    try:
        file.seek(0)
        return bytes(file.read())
    finally:
        file.seek(place)


def _from_samples(
    samples: NDArray[np.generic], white: int, photometric: str, extra: list[str]
) -> Image.Image:
    """Samples [h, w] or [h, w, s] of whole numbers up to `white` as an RGB image, some rows at a time."""
    import numpy as np

    deep = np.atleast_3d(samples)
    pixels = np.empty((*deep.shape[:2], 3), dtype=np.uint8)
    rows = max(1, _BLOCK // max(1, deep.shape[1] * deep.shape[2]))
    for start in range(0, len(deep), rows):
        light = deep[start : start + rows].astype(np.float64) / white
        pixels[start : start + rows] = np.rint(_colours(light, photometric, extra) * 255)
    return Image.fromarray(pixels)


def _colours(light: NDArray[np.float64], photometric: str, extra: list[str]) -> NDArray[np.float64]:
    """Red, green and blue [h, w, 3] (or one grey [h, w, 1]) of samples between 0 and 1."""
    import numpy as np

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
    return rgb


def _reason(source: str | Path | bytes, error: Exception) -> str:
    if isinstance(error, HistobenchError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large to be a tissue region ({error}); cut it into tiles first"
    if isinstance(error, UnidentifiedImageError):
        empty = not (source if isinstance(source, bytes) else Path(source).stat().st_size)
        return "the file is empty" if empty else "not a PNG, JPEG or TIFF image"
    if isinstance(error, OSError) and error.filename is not None:
        return str(error.strerror)  # of the file itself; decoders raise errors without a file
    return f"the image is damaged or truncated ({' '.join(str(error).split()) or type(error).__name__})"
