"""Exact cosine neighbours outside of an image's own group, typed by label and site.

Blocks of images are compared with all others by float32 products of centred features, and whatever float32
cannot decide is then decided in float64. No matrix of n x n is ever held. One block of products serves the
lists of all three kinds (all, SO, OS); a `NeighbourSearch` for each took six times the processor time.

Types, for image i and neighbour j: SO same label and other site; OS other label and same site; SS and OO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

#: Numbers in a block of products: 32 MB.
_PRODUCTS = 1 << 23
#: Numbers of features that are compared in float64 at once.
_AT_ONCE = 1 << 21
#: Candidates beyond the ones asked for, so that rounding in float32 seldom leaves one out.
_SPARE = 8
#: Neighbours of a type beyond the ones asked for, from which those of a left-out unit are replaced.
_TYPED_SPARE = 16
#: Numbers of all lists of neighbours with their spare ones, up to which no list is ever too short: 64 MB.
_LISTED = 1 << 24
#: More than float32 products are off, for vectors of length 1; closer than this is compared in float64.
_ROUNDING = 4e-6
#: Nothing is closer than this in float64 either.
_LEAST = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TypedNeighbours:
    """The nearest images of other groups: `index` [n, k] in order of distance, -1 where there are fewer.

    `so` and `os` [n, m] are the distances to the nearest of these types, inf where there are fewer. `wide`
    [n, k + spare] goes on after `index`, in the order of float32, and `so_wide`, `os_wide` after `so`, `os`.
    """

    index: NDArray[np.int32]
    so: Floats
    os: Floats
    wide: NDArray[np.int32]
    so_wide: TypedList
    os_wide: TypedList


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


def find_neighbours(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    *,
    k: int,
    m: int,
    sizes: Sequence[int] | None = None,
    units: Ints | None = None,
) -> TypedNeighbours:
    """Neighbours of every image among all others of another group.

    `features` [n, d]; `labels`, `sites`, `groups` [n] as whole numbers. Of two at the same distance the first
    goes first. With `sizes` the first 3, say, are exactly the first 3 for each of these sizes, and the order
    between two sizes may be off by the rounding of float32, which saves most of the work in float64.
    `units` [n] are what will be left out one at a time: lists then go on beyond k and m.
    """
    count = len(features)
    k = max(1, min(k, count - 1))
    search = _TypedSearch(features, labels, sites, groups)
    edges = range(1, k + 1) if sizes is None else sorted({min(size, k) for size in (*sizes, k)})
    index = np.full((count, min(k + _spare(units, count, k), count)), -1, dtype=np.int32)
    width = m if units is None else m + _TYPED_SPARE
    unit_of = groups if units is None else units
    typed = {name: _empty_list(count, width, m) for name in ("so", "os")}
    doubtful = np.zeros(count, dtype=bool)
    step = max(16, _PRODUCTS // count)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        near = search.products(rows)
        images = search.order[rows]
        found, _, unsure = search.ranked(near, rows, k, edges, spare=index.shape[1] - k)
        doubtful[images] |= unsure
        index[images, : found.shape[1]] = found
        for part, columns in search.relatives(rows):
            inside = slice(part.start - start, part.stop - start)
            for name, places in columns.items():
                if len(places):
                    kind, images = near[inside][:, places], search.order[part]
                    found, best, unsure = search.ranked(
                        kind, part, m, range(1, m + 1), places, spare=width - m
                    )
                    doubtful[images] |= unsure
                    typed[name].index[images, : found.shape[1]] = found
                    typed[name].distance[images, : best.shape[1]] = best
                    if units is not None:
                        search.without_dominant(typed[name], kind, part, places, unit_of)
    undecided = np.flatnonzero(doubtful)
    step = max(1, _PRODUCTS // 4 // count)
    for start in range(0, len(undecided), step):
        _whole_rows(search, undecided[start : start + step], index, typed, unit_of)
    so, os = typed["so"], typed["os"]
    return TypedNeighbours(index[:, :k], so.distance[:, :m], os.distance[:, :m], index, so, os)


def _spare(units: Ints | None, count: int, k: int) -> int:
    """How many neighbours beyond k are kept: all that one unit can take away, where that is not too many."""
    if units is None:
        return 0
    largest = int(np.bincount(units).max(initial=0))
    return largest if count * (k + largest) <= _LISTED // 4 else min(largest, max(64, 2 * k))


def _empty_list(count: int, width: int, m: int) -> TypedList:
    return TypedList(
        np.full((count, width), -1, dtype=np.int32),
        np.full((count, width), np.inf),
        np.full(count, -1, dtype=np.int64),
        np.full((count, m), np.inf),
    )


def nearest_rows(features: NDArray[np.floating], groups: Ints, rows: Ints, width: int) -> NDArray[np.int32]:
    """The `width` nearest images of other groups of some images [rows, width]; -1: there is none."""
    norms = norms_of(features)
    found = np.full((len(rows), min(width, len(features))), -1, dtype=np.int32)
    step = max(1, _PRODUCTS // 4 // len(features))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        apart = _distances_outside(features, norms, groups, part)
        found[start : start + step] = _nearest_of(apart, found.shape[1])[0]
    return found


class _TypedSearch:
    """Features scaled to length 1 and sorted by label and site, less their mean.

    z_i . z_j = mean . z_i + (r_i . r_j + mean . r_j) with r = z - mean. The first term is the same for all
    neighbours of i, and the rest is small where all features are alike: there float32 tells more apart.
    """

    def __init__(self, features: NDArray[np.floating], labels: Ints, sites: Ints, groups: Ints) -> None:
        import torch

        self.features, self.labels, self.sites, self.groups = features, labels, sites, groups
        self.norms = norms_of(features)
        self.order = np.lexsort((sites, labels))
        mean = np.zeros(features.shape[1])
        for rows in _blocks(features):
            mean += (features[rows].astype(np.float64) / self.norms[rows, None]).sum(axis=0) / len(features)
        self.rest = torch.empty(features.shape, dtype=torch.float32)
        shift = np.empty(len(features))
        length = np.empty(len(features))
        for rows in _blocks(features):
            image = self.order[rows]
            centred = features[image].astype(np.float64) / self.norms[image, None] - mean
            shift[rows], length[rows] = centred @ mean, np.sqrt(np.einsum("ij,ij->i", centred, centred))
            self.rest[rows] = torch.from_numpy(centred.astype(np.float32))
        self.shift = torch.from_numpy(shift.astype(np.float32))
        self.common = shift + mean @ mean
        spread = length * length.max(initial=0.0) + np.abs(shift).max(initial=0.0)
        self.rounding = np.maximum(_ROUNDING * spread, _LEAST)
        self.group = torch.from_numpy(np.unique(groups, return_inverse=True)[1][self.order].astype(np.int32))

    def products(self, rows: slice) -> torch.Tensor:
        """Similarity [rows, n] of sorted images to all others, up to a constant per row; -inf in a group."""
        import torch

        near = torch.addmm(self.shift, self.rest[rows], self.rest.T)
        return near.masked_fill_(self.group[rows, None] == self.group[None, :], -torch.inf)

    def relatives(self, rows: slice) -> list[tuple[slice, dict[str, Ints]]]:
        """Parts of the rows that share label and site, with the columns of their SO and OS relatives."""
        labels, sites = self.labels[self.order], self.sites[self.order]
        found = []
        start = rows.start
        while start < rows.stop:
            alike_label, alike_site = labels == labels[start], sites == sites[start]
            end = min(rows.stop, int(np.flatnonzero(alike_label & alike_site)[-1]) + 1)
            so, os = alike_label & ~alike_site, ~alike_label & alike_site
            found.append((slice(start, end), {"so": np.flatnonzero(so), "os": np.flatnonzero(os)}))
            start = end
        return found

    def ranked(
        self,
        near: torch.Tensor,
        rows: slice,
        width: int,
        edges: Sequence[int],
        columns: Ints | None = None,
        *,
        spare: int = 0,
    ) -> tuple[Ints, Floats, NDArray[np.bool_]]:
        """The `width` + `spare` nearest images, their distances, and which rows float32 cannot decide.

        `near` [rows, n], or [rows, columns] of some sorted images. The first e are exact for every e of
        `edges`; distances are those of float64 where every number up to `width` is an edge. The spare ones
        are in the order of float32.
        """
        import torch

        images = self.order[rows]
        kept = min(width + max(spare, _SPARE), near.shape[1])
        values, places = (part.numpy() for part in torch.topk(near, kept, dim=1))
        there = np.isfinite(values)
        sorted_place = places if columns is None else columns[places]
        found = np.where(there, self.order[sorted_place], -1)
        apart = np.where(there, (1.0 - self.common[rows])[:, None] - values, np.inf)
        edge, rounding = apart[:, -1].copy(), self.rounding[rows]
        unsure = there & _near_edges(apart, edges, rounding, whole=len(edges) == width)
        if columns is not None:
            unsure[:, :width] = there[:, :width]  # their distances are wanted, not their order alone
        self.settle(images, found, apart, unsure)
        changed = np.flatnonzero(unsure.any(axis=1))
        ranks = np.lexsort((found[changed], apart[changed]), axis=1)
        found[changed] = np.take_along_axis(found[changed], ranks, axis=1)
        apart[changed] = np.take_along_axis(apart[changed], ranks, axis=1)
        last = min(width, kept) - 1
        doubtful = np.isfinite(edge) & (kept < near.shape[1]) & (apart[:, last] > edge - rounding)
        return found[:, : width + spare], apart[:, : width + spare], doubtful

    def without_dominant(
        self, lists: TypedList, near: torch.Tensor, rows: slice, columns: Ints, units: Ints
    ) -> None:
        """Find the nearest of other units for images whose list one unit holds nearly alone."""
        import torch

        images = self.order[rows]
        dominant = _dominant(lists.index[images], units, lists.others.shape[1])
        short = np.flatnonzero(dominant >= 0)
        if not len(short):
            return
        unit = torch.from_numpy(units[self.order[columns]])
        masked = near[torch.from_numpy(short)].masked_fill(
            unit[None, :] == torch.from_numpy(dominant[short])[:, None], -torch.inf
        )
        values = torch.topk(masked, min(lists.others.shape[1], masked.shape[1]), dim=1).values.numpy()
        apart = np.where(np.isfinite(values), (1.0 - self.common[rows])[short, None] - values, np.inf)
        lists.dominant[images[short]] = dominant[short]
        lists.others[images[short], : apart.shape[1]] = np.clip(apart, 0.0, 2.0)

    def settle(self, images: Ints, found: Ints, apart: Floats, unsure: NDArray[np.bool_]) -> None:
        """Put float64 distances where `unsure`."""
        row, column = np.nonzero(unsure)
        apart[row, column] = pair_distances(self.features, self.norms, images[row], found[row, column])


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
    ends = np.append(starts, len(one))[1:]
    for start, end in zip(starts, ends, strict=True):
        near = data[torch.from_numpy(other[start:end])].double()
        result[start:end] = (near @ data[one[start]].double()).numpy()
    return np.clip(1.0 - result / (norms[one] * norms[other]), 0.0, 2.0)


def distances(features: NDArray[np.floating], index: NDArray[np.integer]) -> Floats:
    """Cosine distances [n, k] in float64 to the neighbours `index` [n, k]; inf where there is none."""
    row, column = np.nonzero(index >= 0)
    result = np.full(index.shape, np.inf)
    other = index[row, column].astype(np.int64)
    result[row, column] = pair_distances(features, norms_of(features), row, other)
    return result


def norms_of(features: NDArray[np.floating]) -> Floats:
    """Lengths [n] in float64; 1 for features that are all zero."""
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
    norms[norms == 0] = 1.0
    return norms


def _blocks(features: NDArray[np.floating]) -> list[slice]:
    step = max(1, _AT_ONCE // features.shape[1])
    return [slice(start, min(start + step, len(features))) for start in range(0, len(features), step)]


def _near_edges(apart: Floats, edges: Sequence[int], rounding: Floats, *, whole: bool) -> NDArray[np.bool_]:
    """Which candidates float32 may have put on the wrong side of an edge (between edge - 1 and edge)."""
    unsure = np.zeros(apart.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        if whole:
            near = np.diff(apart, axis=1) < rounding[:, None]
            unsure[:, :-1] |= near
            unsure[:, 1:] |= near
            return unsure
        for edge in edges:
            if edge >= apart.shape[1]:
                continue
            rows = np.flatnonzero(apart[:, edge] - apart[:, edge - 1] < rounding)
            below, above = apart[rows, edge, None] - rounding[rows, None], apart[rows, edge - 1, None]
            unsure[rows] |= (apart[rows] > below) & (apart[rows] < above + rounding[rows, None])
    return unsure


def _dominant(index: NDArray[np.int32], units: Ints, m: int) -> Ints:
    """The unit [rows] without which fewer than m of a full list [rows, t] are left; -1: there is none."""
    held = np.sort(np.where(index >= 0, units[index], -1), axis=1)
    middle = held[:, held.shape[1] // 2]  # more than half of the list is one unit's, or none is dominant
    short = (held == middle[:, None]).sum(axis=1) > index.shape[1] - m
    return np.where(short & (index[:, -1] >= 0), middle, -1)


def _distances_outside(features: NDArray[np.floating], norms: Floats, groups: Ints, rows: Ints) -> Floats:
    """Cosine distances [rows, n] in float64; inf within a group."""
    unit = features[rows].astype(np.float64) / norms[rows, None]
    products = np.empty((len(rows), len(features)))
    for part in _blocks(features):
        products[:, part] = unit @ (features[part].astype(np.float64) / norms[part, None]).T
    apart: Floats = np.clip(1.0 - products, 0.0, 2.0)
    apart[groups[rows, None] == groups[None, :]] = np.inf
    return apart


def _nearest_of(apart: Floats, width: int) -> tuple[Ints, Floats]:
    """The places of the `width` least of each row, of equal ones the first, and these; -1 for inf."""
    ranked = np.argsort(apart, axis=1, kind="stable")[:, :width]
    distance = np.take_along_axis(apart, ranked, axis=1)
    return np.where(np.isfinite(distance), ranked, -1), distance


def _whole_rows(
    search: _TypedSearch, rows: Ints, index: NDArray[np.int32], typed: dict[str, TypedList], units: Ints
) -> None:
    """Some images wholly in float64: those with so many near-copies that float32 cannot decide."""
    apart = _distances_outside(search.features, search.norms, search.groups, rows)
    index[rows] = _nearest_of(apart, index.shape[1])[0]
    same_label = search.labels[rows, None] == search.labels[None, :]
    same_site = search.sites[rows, None] == search.sites[None, :]
    for name, wanted in (("so", same_label & ~same_site), ("os", ~same_label & same_site)):
        lists, kind = typed[name], np.where(wanted, apart, np.inf)
        width = min(lists.index.shape[1], apart.shape[1])
        lists.index[rows, :width], lists.distance[rows, :width] = _nearest_of(kind, width)
        if lists.index.shape[1] == lists.others.shape[1]:
            continue
        lists.dominant[rows] = _dominant(lists.index[rows], units, lists.others.shape[1])
        lists.others[rows] = np.inf
        for place in np.flatnonzero(lists.dominant[rows] >= 0):
            left = np.sort(kind[place][units != lists.dominant[rows[place]]])[: lists.others.shape[1]]
            lists.others[rows[place], : len(left)] = left
