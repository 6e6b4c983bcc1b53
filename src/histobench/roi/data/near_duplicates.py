"""Copies that were saved again, resized or lightly retouched: the same picture in other bytes.

Every image is kept as a grey thumbnail of 24 x 24. Candidates share a part of a hash of its brightness
differences; of these, pairs whose thumbnails agree nearly everywhere are near-duplicates. Images without
structure (background, fat seen from afar) look alike without being copies, and are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 24
#: Spread of a thumbnail's grey values under which there is nothing to recognise.
_LEAST_SPREAD = 3.0
#: How alike two thumbnails of one picture are, as a correlation; different fields of one tissue stay below.
_ALIKE = 0.97
#: Bits of a hash that candidates must share, and how many such parts there are.
_BAND, _BANDS = 16, 9
#: Candidates of one image in one band that are looked at; more are a sign of tiles without structure.
_MOST = 64

Thumb = NDArray[np.uint8]  # [SIDE, SIDE]


def thumbnail(image: Image.Image) -> Thumb:
    """The picture in little: grey and smoothed, so that sizes and codings make no difference."""
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(small.convert("L"), dtype=np.uint8)


def near_duplicates(
    thumbs: Sequence[Thumb], parts: Sequence[str], contents: Sequence[bytes]
) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of near-duplicates in different parts (splits) with different contents."""
    if not thumbs:
        return
    grey = np.stack(thumbs).astype(np.float32).reshape(len(thumbs), -1)
    spread = grey.std(axis=1)
    unit = grey - grey.mean(axis=1, keepdims=True)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-6)
    hashes = _hashes(np.stack(thumbs))
    seen: set[tuple[int, int]] = set()
    telling = np.flatnonzero(spread >= _LEAST_SPREAD)
    for band in range(_BANDS):
        buckets: dict[int, list[int]] = defaultdict(list)
        for index in telling.tolist():
            bucket = buckets[int(hashes[index, band])]
            for other in bucket[-_MOST:]:
                pair = (other, index)
                if parts[other] == parts[index] or contents[other] == contents[index] or pair in seen:
                    continue
                seen.add(pair)
                if float(unit[other] @ unit[index]) >= _ALIKE:
                    yield pair
            bucket.append(index)


def _hashes(thumbs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Per thumbnail `_BANDS` numbers of `_BAND` bits: which of two neighbouring cells is brighter."""
    cells = thumbs.astype(np.float32).reshape(len(thumbs), 8, SIDE // 8, 8, SIDE // 8).mean((2, 4))
    along = (cells[:, :, 1:] > cells[:, :, :-1]).reshape(len(thumbs), -1)
    down = (cells[:, 1:] > cells[:, :-1]).reshape(len(thumbs), -1)
    across = (cells[:, 2:, 2:] > cells[:, :-2, :-2]).reshape(len(thumbs), -1)
    bits = np.concatenate([along, down, across], axis=1)[:, : _BAND * _BANDS]
    # Neighbouring cells change together: every band takes bits from all over the picture.
    order = np.random.default_rng(0).permutation(bits.shape[1])
    bands = bits[:, order].reshape(len(thumbs), -1)
    width = bands.shape[1] // _BANDS
    parts = bands[:, : width * _BANDS].reshape(len(thumbs), _BANDS, width)
    return parts @ (1 << np.arange(width, dtype=np.int64))
