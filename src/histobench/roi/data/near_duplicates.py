"""Copies that were saved again, resized or lightly retouched: the same picture in other bytes.

Every image is kept as a grey thumbnail of 24 x 24. Candidates share a part of a hash of its brightness
differences; of these, pairs whose thumbnails agree nearly everywhere are near-duplicates. Images without
structure (background, fat seen from afar) look alike without being copies, and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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

#: Cells along a side of the coarse look, pairs and pictures that are looked at in one go, and what rounding
#: may take from the bound.
_CELLS, _AT_ONCE, _ROUNDING = 4, 8192, 1e-5

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
    pictures = np.stack(thumbs)
    hashes = _hashes(pictures)
    numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
    part_of = np.array([numbers[part] for part in parts])
    compared = _Thumbnails(pictures)
    telling = np.flatnonzero(compared.spread >= _LEAST_SPREAD)
    found: set[tuple[int, int]] = set()
    for band in range(_BANDS):
        order = telling[np.argsort(hashes[telling, band], kind="stable")]
        sorted_hashes = hashes[order, band]
        hits: list[tuple[int, int]] = []
        places = np.arange(len(order))
        for back in range(1, _MOST + 1):
            places = places[places >= back]
            places = places[sorted_hashes[places - back] == sorted_hashes[places]]
            others, images = order[places - back], order[places]
            apart = part_of[others] != part_of[images]
            hits += compared.alike(others[apart], images[apart])
            if not len(places):
                break
        for other, image in sorted(hits, key=lambda pair: (pair[1], pair[0])):
            pair = (other, image)
            if pair not in found and contents[other] != contents[image]:
                found.add(pair)
                yield pair


class _Thumbnails:
    """Thumbnails [n, SIDE, SIDE] with what it takes to tell most pairs apart at a glance.

    Of two vectors of length 1, a . b is at most Pa . Pb + |a - Pa| |b - Pb|, where P takes means over cells:
    16 numbers in place of 576, and a pair that falls short of `_ALIKE` by them falls short of it.
    """

    def __init__(self, pictures: NDArray[np.uint8]) -> None:
        self._grey = pictures.reshape(len(pictures), -1)
        self.spread = np.empty(len(pictures), np.float32)
        self._coarse = np.empty((len(pictures), _CELLS**2), np.float32)
        for start in range(0, len(pictures), _AT_ONCE):
            unit, self.spread[start : start + _AT_ONCE] = self._unit(slice(start, start + _AT_ONCE))
            # The sum over a cell, per root of its size, is the length of the part that is the cell's mean.
            sums = unit.reshape(-1, _CELLS, SIDE // _CELLS, _CELLS, SIDE // _CELLS).sum((2, 4))
            self._coarse[start : start + _AT_ONCE] = sums.reshape(len(sums), -1) / (SIDE // _CELLS)
        self._rest = np.sqrt(np.maximum(1 - np.einsum("nc,nc->n", self._coarse, self._coarse), 0))

    def alike(self, ones: NDArray[np.int64], others: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Those of the pairs whose pictures agree nearly everywhere."""
        found: list[tuple[int, int]] = []
        for start in range(0, len(ones), _AT_ONCE):
            one, other = ones[start : start + _AT_ONCE], others[start : start + _AT_ONCE]
            most = np.einsum("nc,nc->n", self._coarse[one], self._coarse[other])
            most += self._rest[one] * self._rest[other]
            worth = most >= _ALIKE - _ROUNDING
            one, other = one[worth], other[worth]
            alike = np.einsum("nc,nc->n", self._unit(one)[0], self._unit(other)[0]) >= _ALIKE
            found += zip(one[alike].tolist(), other[alike].tolist(), strict=True)
        return found

    def _unit(self, which: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Grey values about their mean, scaled to length 1, and their spread before that."""
        grey = self._grey[which].astype(np.float32)
        spread = grey.std(axis=1)
        grey -= grey.mean(axis=1, keepdims=True)
        grey /= np.maximum(np.linalg.norm(grey, axis=1, keepdims=True), 1e-6)
        return grey, spread


def _hashes(thumbs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Per thumbnail `_BANDS` numbers of `_BAND` bits: which of two neighbouring cells is brighter."""
    if len(thumbs) > _AT_ONCE:  # the same in portions that do not need many times the memory
        portions = (thumbs[start : start + _AT_ONCE] for start in range(0, len(thumbs), _AT_ONCE))
        return np.concatenate([_hashes(portion) for portion in portions])
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
