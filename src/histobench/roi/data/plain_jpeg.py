"""Plain JPEG files decoded straight into an array, with the pixels that Pillow gives.

Whatever is not plain (damaged, turned by EXIF, other samplings or sizes) is left to `open_rgb`.
"""

from __future__ import annotations

import functools
import io
import re
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_BASELINE, _PROGRESSIVE, _SCAN, _END, _PROFILE = 0xC0, 0xC2, 0xDA, 0xD9, 0xE2
#: Segments that need no decision: JFIF, comment, tables, scans.
_HARMLESS = frozenset((0xE0, 0xFE, 0xDB, 0xC4, 0xDD, _SCAN))
#: What ends compressed data; in them 0xFF is followed by 0, or by one of the restart markers.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")
#: How many samples of the luminance go with one of the colours: 4:4:4, 4:2:2, 4:2:0.
_SAMPLINGS = (0x11, 0x21, 0x22)


def decode_into(data: bytes, row: NDArray[np.uint8]) -> bool:
    """Fill `row` [h, w, 3] with the pixels of a JPEG file; False where `open_rgb` has to see to it."""
    if plain_size(data) != (row.shape[1], row.shape[0]):
        return False
    codec = agreeing_codec()
    if codec is None:
        return False
    try:
        codec.jpeg8_decode(data, out=row)
    except Exception:  # decoders meet arbitrary bytes and raise arbitrary errors
        return False
    return True


def plain_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG file in which nothing needs a second look, None for any other bytes."""
    if data[:4] != b"\xff\xd8\xff\xe0" or data[6:11] != b"JFIF\0":
        return None
    size = None
    at = 2
    while at + 1 < len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        length = int.from_bytes(data[at + 2 : at + 4])
        if kind in (_BASELINE, _PROGRESSIVE):
            if size is not None or not _is_colour(data[at + 2 : at + 2 + length]):
                return None
            size = int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        elif kind == _END:
            return size if at + 2 == len(data) else None
        elif kind not in _HARMLESS and not (kind == _PROFILE and data[at + 4 : at + 16] == b"ICC_PROFILE\0"):
            return None
        at += 2 + length
        if kind == _SCAN:  # compressed data go on to the next marker, wherever that is
            found = _MARKER.search(data, at)
            at = found.start() if found else len(data)
    return None


def _is_colour(frame: bytes) -> bool:
    """Whether a frame header tells of Y, Cb and Cr with 8 bits in one of the usual samplings."""
    return (
        len(frame) == 17
        and frame[2] == 8
        and frame[7] == 3
        and frame[8::3] == b"\1\2\3"
        and frame[9] in _SAMPLINGS
        and frame[12] == frame[15] == 0x11
    )


@functools.cache
def agreeing_codec() -> ModuleType | None:
    """The other decoder, if it agrees with Pillow to the last bit: both bring a library of their own."""
    try:
        import imagecodecs

        noise = np.random.default_rng(0).integers(0, 256, (35, 45, 3), dtype=np.uint8)
        for sampling, progressive in ((0, False), (1, False), (2, False), (2, True)):
            file = io.BytesIO()
            Image.fromarray(noise).save(
                file, "JPEG", quality=90, subsampling=sampling, progressive=progressive
            )
            with Image.open(file) as image:
                if not np.array_equal(imagecodecs.jpeg8_decode(file.getvalue()), np.asarray(image)):
                    return None
    except Exception:  # built without it, or another version of it
        return None
    return imagecodecs
