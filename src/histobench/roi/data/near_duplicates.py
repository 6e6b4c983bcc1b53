"""Copies that were saved again, resized or lightly retouched: the same picture in other bytes.

Candidates share a part of a hash of a grey thumbnail; images without structure are not compared.
"""

from __future__ import annotations

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
_BAND, _BANDS = 20, 12
#: Candidates of one image in one band that are looked at; more are a sign of tiles without structure.
_MOST = 16

#: Cells along a side of the coarse look, pairs and pictures that are looked at in one go, and what rounding
#: may take from the bound.
_CELLS, _AT_ONCE, _ROUNDING = 4, 8192, 1e-5

Thumb = NDArray[np.uint8]  # [SIDE, SIDE]


def thumbnail(image: Image.Image) -> Thumb:
    """The picture in little: grey and smoothed, so that sizes and codings make no difference."""
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR).convert("L"), dtype=np.uint8)


def near_duplicates(
    thumbs: Sequence[Thumb], parts: Sequence[str], contents: Sequence[bytes]
) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of near-duplicates in different parts (splits) with different contents."""
    if not thumbs:
        return
    pictures = np.stack(thumbs)
    hashes = _hashes(pictures)
    part_of = np.unique(np.array(parts), return_inverse=True)[1]
    compared = _Thumbnails(pictures)
    telling = np.flatnonzero(compared.spread >= _LEAST_SPREAD)
    found: set[tuple[int, int]] = set()
    for band in range(_BANDS):
        # Those that share the next band as well stand side by side.
        order = telling[np.lexsort((hashes[telling, (band + 1) % _BANDS], hashes[telling, band]))]
        sorted_hashes, sorted_parts = hashes[order, band], part_of[order]
        # In this order pairs are neighbors in memory, too.
        coarse, rest = compared.coarse[order], compared.rest[order]
        hits: list[tuple[int, int]] = []
        places = np.arange(len(order))
        for back in range(1, _MOST + 1):
            places = places[places >= back]
            places = places[sorted_hashes[places - back] == sorted_hashes[places]]
            if not len(places):
                break
            apart = places[sorted_parts[places - back] != sorted_parts[places]]
            for start in range(0, len(apart), _AT_ONCE):
                at = apart[start : start + _AT_ONCE]
                most = np.einsum("nc,nc->n", coarse[at - back], coarse[at]) + rest[at - back] * rest[at]
                at = at[most >= _ALIKE - _ROUNDING]
                hits += compared.alike(*np.sort([order[at - back], order[at]], axis=0))
        for pair in sorted(hits, key=lambda pair: (pair[1], pair[0])):
            other, image = pair
            if pair not in found and contents[other] != contents[image]:
                found.add(pair)
                yield pair


class _Thumbnails:
    """Thumbnails [n, SIDE, SIDE] with what it takes to tell most pairs apart at a glance.

    Of vectors of length 1, a . b is at most Pa . Pb + |a - Pa| |b - Pb|, where P takes means over cells.
    """

    def __init__(self, pictures: NDArray[np.uint8]) -> None:
        self._grey = pictures.reshape(len(pictures), -1)
        self._sum = np.empty(len(pictures))
        self._length = np.empty(len(pictures))  # of the grey values about their mean
        self.coarse = np.empty((len(pictures), _CELLS**2), np.float32)
        for start in range(0, len(pictures), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            grey = self._grey[some].astype(np.float32)
            self._sum[some] = grey.sum(axis=1)
            grey -= grey.mean(axis=1, keepdims=True)
            self._length[some] = np.sqrt(np.einsum("np,np->n", grey, grey))
            # The sum over a cell, per root of its size, is the length of the part that is the cell's mean.
            cells = grey.reshape(-1, _CELLS, SIDE // _CELLS, _CELLS, SIDE // _CELLS).sum((2, 4))
            length = np.maximum(self._length[some, None], 1e-6)
            self.coarse[some] = cells.reshape(len(cells), -1) / length / (SIDE // _CELLS)
        self.spread = self._length / SIDE
        self.rest = np.sqrt(np.maximum(1 - np.einsum("nc,nc->n", self.coarse, self.coarse), 0))

    def alike(self, ones: NDArray[np.int64], others: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Those of the pairs whose pictures agree nearly everywhere: a correlation, of exact sums."""
        left, right = (self._grey[which].astype(np.int32) for which in (ones, others))
        products = np.einsum("np,np->n", left, right)
        covariance = products - self._sum[ones] * self._sum[others] / SIDE**2
        alike = covariance >= _ALIKE * self._length[ones] * self._length[others]
        return list(zip(ones[alike].tolist(), others[alike].tolist(), strict=True))


def _hashes(thumbs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Per thumbnail `_BANDS` numbers of `_BAND` bits: which of two neighbouring cells is brighter."""
    if len(thumbs) > _AT_ONCE:  # the same in portions that do not need many times the memory
        portions = (thumbs[start : start + _AT_ONCE] for start in range(0, len(thumbs), _AT_ONCE))
        return np.concatenate([_hashes(portion) for portion in portions])
    cells = thumbs.astype(np.float32).reshape(len(thumbs), 8, SIDE // 8, 8, SIDE // 8).mean((2, 4))
    along = (cells[:, :, 1:] > cells[:, :, :-1]).reshape(len(thumbs), -1)
    down = (cells[:, 1:] > cells[:, :-1]).reshape(len(thumbs), -1)
    across = (cells[:, 2:, 2:] > cells[:, :-2, :-2]).reshape(len(thumbs), -1)
    bits = np.concatenate([along, down, across], axis=1)
    # Neighbouring cells change together: every band takes bits from all over the picture.
    rng = np.random.default_rng(0)
    bands = np.stack([rng.permutation(bits.shape[1])[:_BAND] for _ in range(_BANDS)])
    return np.stack([bits[:, band] @ (1 << np.arange(_BAND, dtype=np.int64)) for band in bands], axis=1)
