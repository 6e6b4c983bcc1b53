"""Exact cosine neighbours outside of an image's own group, typed by label and site.

Candidates are found with float32 products of blocks (each pair of images once: the distance is symmetric),
and whatever float32 cannot decide is then decided in float64. No matrix of n x n is ever held.

Types, for image i and neighbour j: SO same label and other site; OS other label and same site; SS and OO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

#: Images in one block; a product of two blocks is 16 MB.
_BLOCK = 2048
#: Candidates beyond the ones asked for, so that rounding in float32 seldom leaves one out.
_SPARE = 8
#: More than float32 products of unit vectors are off; two distances closer than this are compared in float64.
_ROUNDING = 4e-6

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbours:
    """The nearest images of other groups: `index` [n, k] in order of distance, -1 where there are fewer.

    `so` and `os` [n, m] are the distances to the nearest of these types, inf where there are fewer.
    """

    index: Ints
    so: Floats
    os: Floats


def find_neighbours(
    features: NDArray[np.floating], labels: Ints, sites: Ints, groups: Ints, *, k: int, m: int
) -> Neighbours:
    """Neighbours of every image among all others of another group.

    `features` [n, d]; `labels`, `sites`, `groups` [n] as whole numbers. Of two at the same distance the first
    goes first.
    """
    import torch

    count = len(features)
    k = max(1, min(k, count - 1))
    keep = min(max(k, m) + _SPARE, count - 1)
    norms = _norms(features)
    order = np.lexsort((sites, labels))
    unit = torch.from_numpy((features[order] / norms[order, None]).astype(np.float32))
    cells = _cells(labels[order], sites[order])
    lists = _Candidates(count, keep, m + _SPARE)
    group = torch.from_numpy(np.ascontiguousarray(groups[order]))
    blocks = [
        (cell, a, min(a + _BLOCK, end))
        for cell, (start, end) in enumerate(cells.ranges)
        for a in range(start, end, _BLOCK)
    ]
    for first, (cell, a, b) in enumerate(blocks):
        for other, c, d in blocks[first:]:
            near = unit[a:b] @ unit[c:d].T
            near.masked_fill_(group[a:b, None] == group[None, c:d], -torch.inf)
            kind = cells.kind(cell, other)
            lists.merge(a, b, c, near, kind)
            if (a, b) != (c, d):
                lists.merge(c, d, a, near.T.contiguous(), kind)
    return _refined(features, norms, order, labels, sites, groups, lists, k=k, m=m)


@dataclass(frozen=True)
class _Cells:
    """Runs of images with the same label and site, after sorting by both."""

    ranges: list[tuple[int, int]]
    label: list[int]
    site: list[int]

    def kind(self, one: int, other: int) -> str:
        same_label = self.label[one] == self.label[other]
        same_site = self.site[one] == self.site[other]
        return "so" if same_label and not same_site else "os" if same_site and not same_label else ""


def _cells(labels: Ints, sites: Ints) -> _Cells:
    change = np.flatnonzero((np.diff(labels) != 0) | (np.diff(sites) != 0)) + 1
    starts = np.concatenate([[0], change])
    ends = np.concatenate([change, [len(labels)]])
    ranges = [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    return _Cells(ranges, [int(labels[start]) for start in starts], [int(sites[start]) for start in starts])


class _Candidates:
    """Per image the best candidates so far: over all types, and of SO and OS; similarities in float32."""

    def __init__(self, count: int, keep: int, typed: int) -> None:
        import torch

        def empty(width: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((count, width), -torch.inf), torch.full((count, width), -1, dtype=torch.int32)

        self.best = {"": empty(keep), "so": empty(typed), "os": empty(typed)}

    def merge(self, a: int, b: int, offset: int, near: torch.Tensor, kind: str) -> None:
        """Take up what the images a..b see in a block of columns that begins at `offset`."""
        import torch

        widest = min(max(len(self.best[name][0][0]) for name in ("", kind)), near.shape[1])
        value, place = torch.topk(near, widest, dim=1)
        place = (place + offset).to(torch.int32)
        place[value == -torch.inf] = -1
        for name in {"", kind}:
            values, places = self.best[name]
            width = values.shape[1]
            both = torch.cat([values[a:b], value[:, :width]], dim=1)
            kept, chosen = torch.topk(both, width, dim=1)
            places[a:b] = torch.cat([places[a:b], place[:, :width]], dim=1).gather(1, chosen)
            values[a:b] = kept


def distances(features: NDArray[np.floating], index: Ints) -> Floats:
    """Cosine distances [n, k] in float64 to the neighbours `index` [n, k]; inf where there is none."""
    norms = _norms(features)
    result = np.empty(index.shape)
    for start in range(0, len(index), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(index)))
        result[rows] = _exact(features, norms, rows, index[rows])
    return result


def _norms(features: NDArray[np.floating]) -> Floats:
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
    norms[norms == 0] = 1.0
    return norms


def _refined(
    features: NDArray[np.floating],
    norms: Floats,
    order: Ints,
    labels: Ints,
    sites: Ints,
    groups: Ints,
    lists: _Candidates,
    *,
    k: int,
    m: int,
) -> Neighbours:
    """The callers' order, decided in float64; images whose candidates may not suffice are done whole."""
    count = len(features)
    index = np.full((count, k), -1, dtype=np.int64)
    typed = {name: np.full((count, m), np.inf) for name in ("so", "os")}
    doubtful = np.zeros(count, dtype=bool)
    for name, width in (("", k), ("so", m), ("os", m)):
        values, places = (part.numpy() for part in lists.best[name])
        for start in range(0, count, _BLOCK):
            rows = slice(start, min(start + _BLOCK, count))
            images = order[rows]  # row r of the lists is image order[r], and so are its candidates
            found = np.where(places[rows] >= 0, order[places[rows]], -1)
            apart = 1.0 - values[rows].astype(np.float64)
            unsure = np.isfinite(apart) if name else _close(apart)
            _settle(features, norms, images, found, apart, unsure)
            ranked = np.lexsort((found, apart), axis=1)[:, :width]
            best = np.take_along_axis(apart, ranked, axis=1)
            edge = 1.0 - values[rows][:, -1].astype(np.float64)
            full = (found >= 0).all(axis=1) & (found.shape[1] < count - 1)
            doubtful[images] |= full & (best[:, -1] > edge - _ROUNDING)
            if name:
                typed[name][images, : best.shape[1]] = best
            else:
                index[images, : ranked.shape[1]] = np.take_along_axis(found, ranked, axis=1)
    undecided = np.flatnonzero(doubtful)
    for start in range(0, len(undecided), _BLOCK // 8):
        part = undecided[start : start + _BLOCK // 8]
        _whole_rows(features, norms, labels, sites, groups, part, index, typed)
    return Neighbours(index, typed["so"], typed["os"])


def _close(apart: Floats) -> NDArray[np.bool_]:
    """Which candidates are so near to the next one that float32 may have them in the wrong order."""
    with np.errstate(invalid="ignore"):
        near = np.diff(apart, axis=1) < _ROUNDING
    close = np.zeros(apart.shape, dtype=bool)
    close[:, :-1] |= near
    close[:, 1:] |= near
    return close & np.isfinite(apart)


def _settle(
    features: NDArray[np.floating],
    norms: Floats,
    images: Ints,
    found: Ints,
    apart: Floats,
    unsure: NDArray[np.bool_],
) -> None:
    """Put float64 distances where `unsure`; rows that are unsure throughout are done together."""
    dense = unsure.mean(axis=1) > 0.25
    rows = np.flatnonzero(dense)
    if len(rows):
        apart[rows] = _exact(features, norms, images[rows], found[rows])
    row, column = np.nonzero(unsure & ~dense[:, None])
    step = max(1, (1 << 21) // features.shape[1])
    for start in range(0, len(row), step):
        r, c = row[start : start + step], column[start : start + step]
        one, other = images[r], found[r, c]
        product = np.einsum(
            "ij,ij->i",
            features[one].astype(np.float64, copy=False),
            features[other].astype(np.float64, copy=False),
        )
        apart[r, c] = np.clip(1.0 - product / (norms[one] * norms[other]), 0.0, 2.0)


def _exact(features: NDArray[np.floating], norms: Floats, images: Ints, found: Ints) -> Floats:
    """Cosine distances [rows, candidates] in float64; inf where there is no candidate."""
    result = np.empty(found.shape)
    step = max(1, (1 << 22) // (found.shape[1] * features.shape[1]))
    for start in range(0, len(images), step):
        rows = slice(start, start + step)
        near = features[found[rows]].astype(np.float64, copy=False)  # [rows, candidates, d]
        own = features[images[rows]].astype(np.float64, copy=False)
        products = np.matmul(near, own[:, :, None])[:, :, 0]
        result[rows] = 1.0 - products / (norms[found[rows]] * norms[images[rows], None])
    result = np.clip(result, 0.0, 2.0)
    result[found < 0] = np.inf
    return result


def _whole_rows(
    features: NDArray[np.floating],
    norms: Floats,
    labels: Ints,
    sites: Ints,
    groups: Ints,
    rows: Ints,
    index: Ints,
    typed: dict[str, Floats],
) -> None:
    """Some images wholly in float64: those with so many near-copies that float32 cannot decide."""
    unit = features[rows].astype(np.float64) / norms[rows, None]
    products = np.empty((len(rows), len(features)))
    for start in range(0, len(features), _BLOCK):
        part = slice(start, start + _BLOCK)
        products[:, part] = unit @ (features[part].astype(np.float64) / norms[part, None]).T
    apart = np.clip(1.0 - products, 0.0, 2.0)
    apart[groups[rows, None] == groups[None, :]] = np.inf
    ranked = np.argsort(apart, axis=1, kind="stable")[:, : index.shape[1]]
    index[rows, : ranked.shape[1]] = np.where(
        np.isfinite(np.take_along_axis(apart, ranked, axis=1)), ranked, -1
    )
    same_label, same_site = labels[rows, None] == labels[None, :], sites[rows, None] == sites[None, :]
    for name, wanted in (("so", same_label & ~same_site), ("os", ~same_label & same_site)):
        width = min(typed[name].shape[1], apart.shape[1])
        typed[name][rows, :width] = np.sort(np.where(wanted, apart, np.inf), axis=1)[:, :width]
