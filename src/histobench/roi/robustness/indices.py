"""Robustness index, margin-aware robustness index and cross-confounder margin, image by image.

Every measure is kept as per-image terms, so that the value, its interval over groups and the difference
between two encoders are sums (or quantiles) of the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.neighbours import Floats, Ints, Neighbours, distances_from, norms_of

#: The published neighbourhood sizes of PathoROB, for comparison with its tables.
PUBLISHED_K = {"pathorob-camelyon": 11, "pathorob-tcga": 61, "pathorob-tolkach-esca": 46}
#: What k is chosen from on other data: 1, 3, ..., 11, then steps of ten, as PathoROB does.
CANDIDATES = (1, 3, 5, 7, 9, *range(11, 600, 10))
_PAIRS_AT_ONCE = 1 << 19
#: Share of images in the tail whose mean is reported.
TAIL = 0.10


@dataclass(frozen=True)
class Evidence:
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
    def support(self) -> float:
        """Share of images with a typed neighbour among the first k."""
        return float(np.mean(self.so + self.os > 0))


def candidates_for(count: int) -> tuple[int, ...]:
    """The neighbourhood sizes to choose from in a set of `count` images.

    >>> candidates_for(30)
    (1, 3, 5, 7, 9, 11, 21)
    """
    return tuple(k for k in CANDIDATES if k < count)


def choose_k(near: Neighbours, labels: Ints, candidates: Sequence[int]) -> tuple[int, dict[int, float]]:
    """The k whose majority vote has the best balanced accuracy (ties: the first), and the accuracy of each.

    Of classes with equally many votes the lowest wins; images without a neighbour do not vote.
    """
    classes = int(labels.max()) + 1
    votes = np.zeros((len(labels), classes), dtype=np.int32)
    rows = np.arange(len(labels))
    scores: dict[int, float] = {}
    done = 0
    for k in sorted(set(candidates)):
        for column in range(done, min(k, near.index.shape[1])):
            there = near.index[:, column] >= 0
            votes[rows[there], labels[near.index[there, column]]] += 1
        done = k
        used = votes.sum(axis=1) > 0
        if used.any():
            right = votes[used].argmax(axis=1) == labels[used]
            size = np.bincount(labels[used], minlength=classes)
            hits = np.bincount(labels[used], weights=right, minlength=classes)
            scores[k] = float(np.mean(hits[size > 0] / size[size > 0]))
    if not scores:
        raise HistobenchError("no image has a neighbour in another group; robustness needs several groups")
    best = max(scores.values())
    return next(k for k in candidates if k in scores and scores[k] == best), scores


def robustness_index(near: Neighbours, labels: Ints, sites: Ints, *, k: int) -> Evidence:
    """RI: among the first k neighbours, how many share the biology and not the site, against the reverse."""
    so, os = np.zeros(len(labels)), np.zeros(len(labels))
    for rows in _blocks(near, k):
        found = _typed(near, labels, sites, rows, k)
        so[rows], os[rows] = (kind.sum(axis=1) for kind in found)
    return Evidence(so, os, k)


def margin_aware_index(
    near: Neighbours,
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    *,
    k: int,
    tau: float | None = None,
) -> Evidence:
    """MaRI: as RI, each neighbour weighted by exp(-distance / tau).

    Without `tau` it is the median distance to the SO and OS neighbours among the first k.
    """
    norms = norms_of(features)
    blocks = _blocks(near, k)
    parts: list[Floats] = []
    for rows in blocks:
        row, column = np.nonzero(np.logical_or(*_typed(near, labels, sites, rows, k)))
        other = near.index[rows, :k][row, column].astype(np.int64)
        parts.append(distances_from(features, norms, row + rows.start, other))
    if tau is None:
        if not sum(map(len, parts)):
            return Evidence(np.zeros(len(labels)), np.zeros(len(labels)), k, float("nan"))
        tau = float(np.median(np.concatenate(parts)))
    if tau <= 0:
        raise HistobenchError("half of the typed neighbours are exact copies; the features have collapsed")
    so_terms, os_terms = np.zeros(len(labels)), np.zeros(len(labels))
    for rows, distance in zip(blocks, parts, strict=True):
        so, os = _typed(near, labels, sites, rows, k)
        weight = np.zeros(so.shape)
        weight[so | os] = np.exp(-distance / tau)
        so_terms[rows], os_terms[rows] = (weight * so).sum(axis=1), (weight * os).sum(axis=1)
    return Evidence(so_terms, os_terms, k, tau)


def _blocks(near: Neighbours, k: int) -> list[slice]:
    """Images in blocks, so that nothing of the size of all neighbours is made on the way."""
    count, step = len(near.index), max(1, _PAIRS_AT_ONCE // k)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _typed(
    near: Neighbours, labels: Ints, sites: Ints, rows: slice, k: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the first k neighbours of some images are SO, and which OS."""
    index = near.index[rows, :k]
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
        edge = np.percentile(self.values, TAIL * 100)
        return float(self.values[self.values <= edge].mean())

    @property
    def share_below(self) -> float:
        """Share of images whose site is as near as, or nearer than, their biology."""
        return float(np.mean(self.values <= 0))


def cross_site_margin(near: Neighbours) -> Margins:
    """CRoMa: (D_OS - D_SO) / (D_OS + D_SO), D the mean distance to the m nearest of that type."""
    missing = int((~np.isfinite(near.so).all(axis=1) | ~np.isfinite(near.os).all(axis=1)).sum())
    m = near.so.shape[1]
    if missing:
        raise HistobenchError(
            f"{missing:,} images have fewer than {m} relatives of their class at another site, or of another"
            " class at their site, outside of their group; the margin needs crossed classes and sites"
        )
    so, os = near.so.mean(axis=1), near.os.mean(axis=1)
    if not (so + os > 0).all():
        raise HistobenchError("some images equal all of their relatives; the features have collapsed")
    return Margins((os - so) / (os + so), m)
