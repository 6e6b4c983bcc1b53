"""Exact cosine neighbours outside of an image's own group, typed by label and site, block by block.

Types, for image i and neighbour j: SO same label and other site; OS other label and same site.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

#: Numbers in a block of products: 32 MB.
_PRODUCTS = 1 << 22
#: Numbers of features that are compared pair by pair at once.
_AT_ONCE = 1 << 21
#: Neighbours of a type beyond the ones asked for, from which those of a left-out unit are replaced.
_TYPED_SPARE = 16
#: Numbers of all lists of neighbours with their spare ones, up to which no list is ever too short: 64 MB.
_LISTED = 1 << 24

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TypedList:
    """The nearest of one type: rows `index` [n, t] (-1: none) at `distance` [n, t], nearest first.

    Where one unit holds so many of them that fewer than m are left without it, that is `dominant` [n] (else
    -1) and `others` [n, m] are the distances to the nearest of other units.
    """

    index: NDArray[np.int32]
    distance: Floats
    dominant: Ints
    others: Floats

    @classmethod
    def empty(cls, count: int, width: int, m: int) -> TypedList:
        return cls(
            np.full((count, width), -1, dtype=np.int32),
            np.full((count, width), np.inf),
            np.full(count, -1, dtype=np.int64),
            np.full((count, m), np.inf),
        )


@dataclass(frozen=True)
class TypedNeighbours:
    """The nearest images of other groups [n, k + spare] in order of distance, -1 where there are fewer.

    `so` and `os` are the nearest of these types; m of each are wanted, the rest is spare.
    """

    k: int
    m: int
    wide: NDArray[np.int32]
    so: TypedList
    os: TypedList

    @property
    def index(self) -> NDArray[np.int32]:
        """The first k [n, k]."""
        return self.wide[:, : self.k]


def find_neighbours(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    *,
    k: int,
    m: int,
    units: Ints | None = None,
) -> TypedNeighbours:
    """Neighbours of every image among all others of another group.

    `features` [n, d]; `labels`, `sites`, `groups` [n] as whole numbers. `units` [n] are what will be left out
    one at a time: lists then go on beyond k and m.
    """
    import torch

    count = len(features)
    k = max(1, min(k, count - 1))
    order = np.lexsort((sites, labels))  # images with the same relatives follow each other
    norms = norms_of(features)
    unit = torch.from_numpy(features[order] / norms[order, None])
    group = torch.from_numpy(groups[order])
    wide = np.full((count, min(k + _spare(units, count, k), count)), -1, dtype=np.int32)
    width = m if units is None else m + _TYPED_SPARE
    so, os = TypedList.empty(count, width, m), TypedList.empty(count, width, m)
    step = max(16, _PRODUCTS // count)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        apart = torch.rsub(unit[rows] @ unit.T, 1.0).clamp_(0.0, 2.0)
        apart.masked_fill_(group[rows, None] == group[None, :], torch.inf)
        wide[order[rows]] = _nearest(apart, order, wide.shape[1])[0]
        for part, columns in _relatives(labels[order], sites[order], rows):
            block, images = apart[part.start - start : part.stop - start], order[part]
            for lists, places in zip((so, os), columns, strict=True):
                if not len(places):
                    continue
                kind, relatives = block[:, places], order[places]
                found, distance = _nearest(kind, relatives, width)
                wanted = np.s_[:, : min(m, found.shape[1])]  # pair by pair, as MaRI has them
                row, column = np.nonzero(found[wanted] >= 0)
                distance[row, column] = pair_distances(features, norms, images[row], found[row, column])
                lists.index[images, : found.shape[1]] = found
                lists.distance[images, : found.shape[1]] = np.sort(distance, axis=1)
                if units is not None:
                    _without_dominant(lists, kind, images, units, units[relatives])
    return TypedNeighbours(k, m, wide, so, os)


def _spare(units: Ints | None, count: int, k: int) -> int:
    """How many neighbours beyond k are kept: all that one unit can take away, where that is not too many."""
    if units is None:
        return 0
    largest = int(np.bincount(units).max(initial=0))
    return largest if count * (k + largest) <= _LISTED // 4 else min(largest, max(64, 2 * k))


def _relatives(labels: Ints, sites: Ints, rows: slice) -> Iterator[tuple[slice, tuple[Ints, Ints]]]:
    """Parts of sorted rows that share label and site, with the columns of their SO and OS relatives."""
    start = rows.start
    while start < rows.stop:
        alike_label, alike_site = labels == labels[start], sites == sites[start]
        end = min(rows.stop, int(np.flatnonzero(alike_label & alike_site)[-1]) + 1)
        yield (
            slice(start, end),
            (np.flatnonzero(alike_label & ~alike_site), np.flatnonzero(~alike_label & alike_site)),
        )
        start = end


def _nearest(apart: torch.Tensor, images: Ints, width: int) -> tuple[Ints, Floats]:
    """The `width` nearest of `images` [columns] for each row, and their distances; -1 where it is inf."""
    import torch

    near = torch.topk(apart, min(width, apart.shape[1]), largest=False, sorted=True)
    distance, found = near.values.numpy(), images[near.indices.numpy()]
    return np.where(np.isfinite(distance), found, -1), distance


def _without_dominant(
    lists: TypedList, apart: torch.Tensor, images: Ints, units: Ints, unit_of_column: Ints
) -> None:
    """Find the nearest of other units for images whose list one unit holds nearly alone."""
    import torch

    index, m = lists.index[images], lists.others.shape[1]
    held = np.sort(np.where(index >= 0, units[index], -1), axis=1)
    middle = held[:, held.shape[1] // 2]  # more than half of the list is one unit's, or none is dominant
    left = index.shape[1] - (held == middle[:, None]).sum(axis=1)
    rows = np.flatnonzero((left < m) & (index[:, -1] >= 0))
    if not len(rows):
        return
    own = torch.from_numpy(unit_of_column)[None, :] == torch.from_numpy(middle[rows])[:, None]
    others = apart[rows].masked_fill(own, torch.inf)
    nearest = torch.topk(others, min(m, others.shape[1]), largest=False).values.numpy()
    lists.dominant[images[rows]] = middle[rows]
    lists.others[images[rows], : nearest.shape[1]] = nearest


def nearest_rows(features: NDArray[np.floating], groups: Ints, rows: Ints, width: int) -> NDArray[np.int32]:
    """The `width` nearest images of other groups of some images [rows, width]; -1: there is none."""
    import torch

    unit = features / norms_of(features)[:, None]
    found = np.full((len(rows), min(width, len(features))), -1, dtype=np.int32)
    step = max(1, _PRODUCTS // len(features))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        apart = np.clip(1.0 - unit[part] @ unit.T, 0.0, 2.0)
        apart[groups[part, None] == groups[None, :]] = np.inf
        every = np.arange(len(features))
        found[start : start + step] = _nearest(torch.from_numpy(apart), every, found.shape[1])[0]
    return found


def pair_distances(features: NDArray[np.floating], norms: Floats, one: Ints, other: Ints) -> Floats:
    """Cosine distances [p] in float64 between images `one` [p] and `other` [p]."""
    import torch

    data = torch.from_numpy(features)
    result = np.empty(len(one))
    step = max(1, _AT_ONCE // features.shape[1])
    for start in range(0, len(one), step):
        part = slice(start, start + step)
        a, b = (data[torch.from_numpy(rows[part])].double() for rows in (one, other))
        result[part] = a.mul_(b).sum(dim=1).numpy()
    return np.clip(1.0 - result / (norms[one] * norms[other]), 0.0, 2.0)


def distances_from(features: NDArray[np.floating], norms: Floats, one: Ints, other: Ints) -> Floats:
    """As `pair_distances`, quicker where `one` [p] has long runs of the same image."""
    import torch

    data = torch.from_numpy(features)
    result = np.empty(len(one))
    starts = np.flatnonzero(np.diff(one, prepend=-1))
    for start, end in zip(starts, np.append(starts, len(one))[1:], strict=True):
        near = data[torch.from_numpy(other[start:end])].double()
        result[start:end] = (near @ data[one[start]].double()).numpy()
    return np.clip(1.0 - result / (norms[one] * norms[other]), 0.0, 2.0)


def norms_of(features: NDArray[np.floating]) -> Floats:
    """Lengths [n] in float64; 1 for features that are all zero."""
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
    norms[norms == 0] = 1.0
    return norms
