"""Robustness index, margin-aware robustness index and cross-site margin, image by image.

`pack` calls these for one encoder and site column, chooses k and adds intervals. Each measure is also
computed without one unit (a group, or a block of groups) at a time: its images are then neither queries nor
neighbors, and the next neighbor in the list takes the place of a removed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.site_neighbours import (
    Floats,
    Ints,
    TypedList,
    TypedNeighbours,
    distances_from,
    nearest_rows,
    norms_of,
    pair_distances,
)

#: The published neighbourhood sizes of PathoROB, for comparison with its tables.
PUBLISHED_K = {"pathorob-camelyon": 11, "pathorob-tcga": 61, "pathorob-tolkach-esca": 46}
#: What k is chosen from on other data: 1, 3, ..., 11, then steps of ten, as PathoROB does.
CANDIDATES = (1, 3, 5, 7, 9, *range(11, 600, 10))
_PAIRS_AT_ONCE = 1 << 19
_VOTES_AT_ONCE = 1 << 22
#: Share of images in the tail whose mean is reported.
TAIL = 0.10
#: Images that are kept for a look.
SHOWN = 8


@dataclass(frozen=True)
class IndexEvidence:
    """Per image [n] the weight of its SO and of its OS neighbours among the first k."""

    so: Floats
    os: Floats
    k: int
    tau: float | None = None

    @property
    def value(self) -> float:
        """sum SO / sum (SO + OS), NaN where no image has a typed neighbour."""
        total = self.so.sum() + self.os.sum()
        return float(self.so.sum() / total) if total > 0 else float("nan")

    @property
    def counted(self) -> int:
        """How many images have a typed neighbour among the first k."""
        return int(np.sum(self.so + self.os > 0))

    @property
    def support(self) -> float:
        """Share of images with a typed neighbour among the first k."""
        return self.counted / len(self.so)


def candidates_for(count: int) -> tuple[int, ...]:
    """The neighbourhood sizes to choose from in a set of `count` images.

    >>> candidates_for(30)
    (1, 3, 5, 7, 9, 11, 21)
    """
    return tuple(k for k in CANDIDATES if k < count)


def choose_k(near: TypedNeighbours, labels: Ints, candidates: Sequence[int]) -> tuple[int, dict[int, float]]:
    """The k whose majority vote has the best balanced accuracy (ties: the first), and the accuracy of each.

    Of classes with equally many votes the lowest wins; images without a neighbour do not vote.
    """
    classes, rows, done = int(labels.max()) + 1, np.arange(len(labels)), 0
    votes = np.zeros((len(labels), classes), dtype=np.int32)
    scores: dict[int, float] = {}
    for k in sorted(set(candidates)):
        for column in range(done, min(k, near.index.shape[1])):
            there = near.index[:, column] >= 0
            votes[rows[there], labels[near.index[there, column]]] += 1
        done = k
        used = votes.any(axis=1)
        if used.any():
            right = votes[used].argmax(axis=1) == labels[used]
            hits = np.bincount(labels[used], weights=right, minlength=classes).astype(np.float64)
            scores[k] = _balanced(hits, np.bincount(labels[used], minlength=classes))
    if not scores:
        raise HistobenchError("no image has a neighbor in another group; robustness needs several groups")
    best = max(scores.values())
    return next(k for k in candidates if k in scores and scores[k] == best), scores


def _balanced(hits: Floats, voters: Ints) -> float:
    """Balanced accuracy from the hits and the voters of each class; classes without voters do not count."""
    return float(np.mean(hits[voters > 0] / voters[voters > 0]))


def chosen_without(near: TypedNeighbours, labels: Ints, candidates: Sequence[int], units: Ints) -> Ints:
    """The k that `choose_k` chooses without each unit [units]."""
    count, classes, sizes = int(units.max()) + 1, int(labels.max()) + 1, sorted(set(candidates))
    hits = np.zeros((len(sizes), count * classes))
    voters = np.zeros(count * classes, dtype=np.int64)
    step = max(1, _VOTES_AT_ONCE // (classes * max(near.wide.shape[1] + 1, count)))
    for start in range(0, len(labels), step):
        part = slice(start, start + step)
        each = _votes_without(near.wide[part], labels, units, labels[part], units[part], sizes)
        hits += each[0]
        voters += each[1]
    found = np.empty(count, dtype=np.int64)
    for unit in range(count):
        of_unit = slice(unit * classes, (unit + 1) * classes)
        # Where no image has a neighbour left there is no index either, whatever k is.
        scores = {
            k: _balanced(right[of_unit], voters[of_unit]) if voters[of_unit].any() else 0.0
            for k, right in zip(sizes, hits, strict=True)
        }
        found[unit] = max(candidates, key=scores.__getitem__)
    return found


def _votes_without(
    lists: NDArray[np.int32], labels: Ints, units: Ints, truth: Ints, unit: Ints, sizes: Sequence[int]
) -> tuple[Floats, Ints]:
    """Votes of the first k neighbours without each unit, for each k of `sizes`, over some images.

    `lists` [rows, width] are their neighbours, `truth` and `unit` [rows] their own class and unit. Returns
    how many are right [sizes, units * classes] and how many vote [units * classes], by class.

    Where a unit holds r places before the k-th image of other units, the first k + r vote without these r.
    The lead of a class changes by 2 r at most, so most votes need not be counted again.
    """
    rows, width = lists.shape
    count, classes = int(units.max()) + 1, int(labels.max()) + 1
    there = lists >= 0
    row, column = np.nonzero(there)
    kind = labels[lists[row, column]]
    among = np.zeros((rows, width + 1, classes), dtype=np.int32)  # votes of the first places
    among[row, column + 1, kind] = 1
    np.cumsum(among, axis=1, out=among)

    # Each place of a list by its row and unit, and the first size from which on the place is missing.
    pair = row * count + units[lists[row, column]]
    order = np.argsort(pair, kind="stable")
    pair, column, kind = pair[order], column[order], kind[order]
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    before = np.arange(len(pair)) - np.repeat(starts, np.diff(starts, append=len(pair)))
    since = np.searchsorted(sizes, column - before, side="right")
    order = np.argsort(since, kind="stable")
    pair, kind, edges = pair[order], kind[order], np.searchsorted(since[order], np.arange(len(sizes) + 1))

    own, cell = np.arange(rows) * count + unit, unit * classes + truth
    gone = np.bincount(pair, minlength=rows * count)
    left = np.repeat(there.sum(axis=1)[:, None], count, axis=1).ravel() - gone
    left[own] = 0
    row, held_by = np.nonzero(left.reshape(rows, count))
    voters = np.bincount(held_by * classes + truth[row], minlength=count * classes)

    hits = np.empty((len(sizes), count * classes))
    missing = np.zeros(rows * count, dtype=np.int32)
    missing_of = np.zeros((rows * count, classes), dtype=np.int32)
    for place, k in enumerate(sizes):
        new = slice(edges[place], edges[place + 1])
        np.add.at(missing, pair[new], 1)
        np.add.at(missing_of, (pair[new], kind[new]), 1)
        votes = among[:, min(k, width)]
        right = (votes.argmax(axis=1) == truth) & votes.any(axis=1)
        rivals = votes.copy()
        rivals[np.arange(rows), truth] = -1
        lead = np.abs(votes[np.arange(rows), truth] - rivals.max(axis=1))
        close = (missing.reshape(rows, count) * 2 >= lead[:, None]).ravel() & (missing > 0)
        close[own] = False
        again = np.flatnonzero(close)
        row, held_by = again // count, again % count
        votes = among[row, np.minimum(k + missing[again], width)] - missing_of[again]
        change = ((votes.argmax(axis=1) == truth[row]) & votes.any(axis=1)).astype(np.int64) - right[row]
        hits[place] = np.tile(np.bincount(truth, weights=right, minlength=classes), count)
        hits[place] -= np.bincount(cell, weights=right, minlength=count * classes)
        hits[place] += np.bincount(held_by * classes + truth[row], weights=change, minlength=count * classes)
    return hits, voters


def robustness_index(near: TypedNeighbours, labels: Ints, sites: Ints, *, k: int) -> IndexEvidence:
    """RI: among the first k neighbours, how many share the biology and not the site, against the reverse."""
    so, os = np.zeros(len(labels)), np.zeros(len(labels))
    for rows in _blocks(near, k):
        so[rows], os[rows] = (kind.sum(axis=1) for kind in _typed(near.index[rows, :k], labels, sites, rows))
    return IndexEvidence(so, os, k)


def margin_aware_index(
    near: TypedNeighbours,
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    *,
    k: int,
    tau: float | None = None,
) -> IndexEvidence:
    """MaRI: as RI, each neighbour weighted by exp(-distance / tau).

    Without `tau` it is the median distance to the SO and OS neighbours among the first k.
    """
    norms = norms_of(features)
    blocks = _blocks(near, k)
    parts: list[Floats] = []
    for rows in blocks:
        row, column = np.nonzero(np.logical_or(*_typed(near.index[rows, :k], labels, sites, rows)))
        other = near.index[rows, :k][row, column].astype(np.int64)
        parts.append(distances_from(features, norms, row + rows.start, other))
    if tau is None:
        if not sum(map(len, parts)):
            return IndexEvidence(np.zeros(len(labels)), np.zeros(len(labels)), k)
        tau = float(np.median(np.concatenate(parts)))
    if tau <= 0:
        raise HistobenchError("half of the neighbors that count are copies; the features have collapsed")
    so_terms, os_terms = np.zeros(len(labels)), np.zeros(len(labels))
    for rows, distance in zip(blocks, parts, strict=True):
        so, os = _typed(near.index[rows, :k], labels, sites, rows)
        weight = np.zeros(so.shape)
        weight[so | os] = np.exp(-distance / tau)
        so_terms[rows], os_terms[rows] = (weight * so).sum(axis=1), (weight * os).sum(axis=1)
    return IndexEvidence(so_terms, os_terms, k, tau)


def sums_without(
    near: TypedNeighbours,
    found: IndexEvidence,
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    units: Ints,
) -> tuple[Floats, Floats]:
    """The sums of SO and of OS weights over images without each unit [units], behind `found`.

    Exact: a list that is too short without a unit is searched again. Weights keep the tau of all images.
    """
    count, k = int(units.max()) + 1, found.k
    both = found.so, found.os
    so, os = (terms.sum() - np.bincount(units, weights=terms, minlength=count) for terms in both)
    norms = norms_of(features) if found.tau is not None else np.empty(0)
    widths = sorted({min(2 * k + 32, near.wide.shape[1]), near.wide.shape[1]})

    def add(rows: Ints, lists: NDArray[np.int32], pair_row: Ints, pair_unit: Ints) -> NDArray[np.bool_]:
        """Count pairs of a row (a place among `rows`) and a unit; returns which lists were too short."""
        there = lists >= 0
        weights = np.zeros((2, *lists.shape))
        for at, kind in enumerate(_typed(lists, labels, sites, rows)):
            if found.tau is None:
                weights[at] = kind
            else:
                row, column = np.nonzero(kind)
                apart = pair_distances(features, norms, rows[row], lists[row, column].astype(np.int64))
                weights[at][row, column] = np.exp(-apart / found.tau)
        short = np.zeros(len(pair_row), dtype=bool)
        step = max(1, _PAIRS_AT_ONCE * 4 // lists.shape[1])
        for start in range(0, len(pair_row), step):
            row, unit = pair_row[start : start + step], pair_unit[start : start + step]
            kept = there[row] & (units[lists[row]] != unit[:, None])
            rank = np.cumsum(kept, axis=1, dtype=np.int32)
            missing = (rank[:, -1] < k) & there[row, -1]
            short[start : start + step] = missing
            kept &= rank <= k
            for at, (sums, terms) in enumerate(((so, found.so), (os, found.os))):
                new = np.einsum("pw,pw->p", weights[at][row], kept, dtype=np.float64)
                change = np.where(missing, 0.0, new - terms[rows[row]])
                sums += np.bincount(unit, weights=change, minlength=count)
        return short

    for part in _blocks(near, max(k, near.wide.shape[1] // 4)):
        rows = np.arange(part.start, part.stop)
        first = near.wide[part, :k]
        held = np.where(first >= 0, units[first], units[rows, None])
        pairs = np.unique((np.arange(len(rows))[:, None] * count + held).ravel())
        pair_row, pair_unit = pairs // count, pairs % count
        touched = pair_unit != units[rows[pair_row]]
        pair_row, pair_unit = pair_row[touched], pair_unit[touched]
        for width in widths:
            if len(pair_row):
                short = add(rows, near.wide[part, :width], pair_row, pair_unit)
                pair_row, pair_unit = pair_row[short], pair_unit[short]
        if len(pair_row):
            again, place = np.unique(pair_row, return_inverse=True)
            lists = nearest_rows(features, groups, rows[again], k + int(np.bincount(units).max()))
            add(rows[again], lists, place, pair_unit)
    return so, os


def index_without(so: Floats, os: Floats) -> Floats:
    """sum SO / sum (SO + OS) without each unit; NaN where nothing is left."""
    total = so + os
    # What is left of a sum from which all was taken away is rounding.
    gone = total <= 1e-9 * max(1.0, float(total.max(initial=0.0)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(gone, np.nan, np.clip(so / total, 0.0, 1.0)))


def _blocks(near: TypedNeighbours, k: int) -> list[slice]:
    """Images in blocks, so that nothing of the size of all neighbours is made on the way."""
    count, step = len(near.index), max(1, _PAIRS_AT_ONCE // k)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _typed(
    index: NDArray[np.int32], labels: Ints, sites: Ints, rows: slice | Ints
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which neighbours `index` [rows, k] of some images are SO, and which OS."""
    there = index >= 0
    same_label = labels[index] == labels[rows, None]
    same_site = sites[index] == sites[rows, None]
    return there & same_label & ~same_site, there & ~same_label & same_site


@dataclass(frozen=True)
class Margins:
    """CRoMa of every image [n], in (-1, 1): above 0 its biology is nearer, below 0 its site."""

    values: Floats
    m: int

    @property
    def median(self) -> float:
        """The middle image's margin."""
        return float(np.median(self.values))

    @property
    def tail_mean(self) -> float:
        """Mean margin of the worst tenth of the images."""
        return _tail_mean(self.values)

    @property
    def share_below(self) -> float:
        """Share of images whose site is as near as, or nearer than, their biology."""
        return float(np.mean(self.values <= 0))


def cross_site_margin(near: TypedNeighbours) -> Margins:
    """CRoMa: (D_OS - D_SO) / (D_OS + D_SO), D the mean distance to the m nearest of that type."""
    m = near.m
    nearest_so, nearest_os = near.so.distance[:, :m], near.os.distance[:, :m]
    missing = int((~np.isfinite(nearest_so).all(axis=1) | ~np.isfinite(nearest_os).all(axis=1)).sum())
    if missing:
        raise HistobenchError(
            f"{missing:,} images have fewer than {m} relatives of their class at another site, or of another"
            " class at their site, outside of their group; the margin needs crossed classes and sites"
        )
    so, os = nearest_so.mean(axis=1), nearest_os.mean(axis=1)
    if not (so + os > 0).all():
        raise HistobenchError("some images equal all of their relatives; the features have collapsed")
    return Margins((os - so) / (os + so), m)


def margins_without(near: TypedNeighbours, margins: Margins, units: Ints) -> dict[str, Floats]:
    """Median, mean of the worst tenth and share at or below 0 of the margins without each unit [units].

    An image that has too few relatives without a unit does not count without it.
    """
    count, m = int(units.max()) + 1, margins.m
    rows = np.arange(len(units))
    nearest = np.concatenate([near.so.index[:, :m], near.os.index[:, :m]], axis=1)
    pairs = np.unique(units[nearest] * len(units) + rows[:, None])
    unit, row = pairs // len(units), pairs % len(units)
    so, os = (_mean_without(lists, row, unit, units, m) for lists in (near.so, near.os))
    with np.errstate(invalid="ignore", divide="ignore"):
        changed = (os - so) / (os + so)
    found = {name: np.full(count, np.nan) for name in ("median", "tail", "below")}
    edges = np.searchsorted(unit, np.arange(count + 1))
    for place in range(count):
        part = slice(edges[place], edges[place + 1])
        values = margins.values.copy()
        values[row[part]] = changed[part]
        values = values[(units != place) & np.isfinite(values)]
        if len(values):
            found["median"][place] = np.median(values)
            found["tail"][place] = _tail_mean(values)
            found["below"][place] = np.mean(values <= 0)
    return found


def _tail_mean(values: Floats) -> float:
    return float(values[values <= np.percentile(values, TAIL * 100)].mean())


def _mean_without(lists: TypedList, row: Ints, unit: Ints, units: Ints, m: int) -> Floats:
    """Mean distance [pairs] to the m nearest of a type without a unit; NaN where there are fewer."""
    index, distance = lists.index[row], lists.distance[row]
    kept = (index >= 0) & (units[index] != unit[:, None])
    kept &= np.cumsum(kept, axis=1) <= m
    mean: Floats = np.where(kept.sum(axis=1) == m, np.where(kept, distance, 0.0).sum(axis=1) / m, np.nan)
    others = lists.others[row].mean(axis=1)
    return np.where(lists.dominant[row] == unit, np.where(np.isfinite(others), others, np.nan), mean)


def worst_relatives(near: TypedNeighbours, margins: Floats) -> list[dict[str, Any]]:
    """The images of the lowest margin, each with its nearest relative of either kind, by row.

    `same_site` is the nearest image of another class at the same site, `same_class` the nearest of the same
    class at another site; both outside of the image's own group.
    """
    return [
        {
            "row": int(row),
            "margin": float(margins[row]),
            **{
                name: {"row": int(lists.index[row, 0]), "distance": float(lists.distance[row, 0])}
                for name, lists in (("same_site", near.os), ("same_class", near.so))
            },
        }
        for row in np.argsort(margins, kind="stable")[:SHOWN]
    ]
