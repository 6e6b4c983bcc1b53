"""Registered pairs: the same place of the same tissue, scanned or stained otherwise.

A *view* is what was scanned and stained in one way: the images that agree in every site column (a slide of
PLISM). Two views are compared over the places that both show: the cosine of the two images of a place, and
whether one finds the other among all images of both views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.intervals import Redrawn
from histobench.roi.robustness.neighbours import Floats, Ints

if TYPE_CHECKING:
    import torch

#: Hits that are looked through for the other image of a place, as plismbench does.
TOP = (1, 3, 5, 10)
#: What pairs of views that differ in more than one column are called after.
SEVERAL = "several"
#: Cosines closer than this are equal: more than float64 products of unit vectors are off.
_EQUAL = 1e-12
_ROWS_AT_ONCE, _DRAWS_AT_ONCE = 1024, 64


@dataclass(frozen=True)
class Registration:
    """Which images show which place in which view: whole numbers [n] per image that is used.

    `rows` are the images among all that were given; `views` the values of `columns` in each view.
    """

    rows: Ints
    place: Ints
    view: Ints
    columns: tuple[str, ...]
    views: tuple[tuple[str, ...], ...]
    without_view: int
    copies: int


@dataclass(frozen=True)
class Match:
    """Two views, the columns in which they differ, and their images of the same places, rows [n, 2]."""

    first: int
    second: int
    differ: tuple[str, ...]
    rows: Ints

    @property
    def kind(self) -> str:
        """The column in which the views differ, or that there are several."""
        return self.differ[0] if len(self.differ) == 1 else SEVERAL


@dataclass(frozen=True)
class Agreement:
    """How alike the images of a match are, place by place: `cosine` [n], `found` by k [n].

    `found` is 1 where both images find each other among the first k, 1/2 where one does. Where others are
    exactly as near as the one looked for, it is the share of orders in which that one is among the first k.
    """

    cosine: Floats
    found: Mapping[int, Floats]


def register(places: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Registration:
    """Sort images into places and views; `columns` name -> value per image, "" where it is not known.

    Images without a place are not used, nor those without a value in a column that others have. Of several
    images of one place in one view the first is used.
    """
    known = {name: values for name, values in columns.items() if any(values)}
    if not known:
        raise HistobenchError(
            "registered pairs need a column that says how images of a place differ, such as scanner or stain"
        )
    rows: list[int] = []
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    without_view = copies = 0
    for row, place in enumerate(places):
        if not place:
            continue
        view = tuple(values[row] for values in known.values())
        if not all(view):
            without_view += 1
        elif (place, view) in seen:
            copies += 1
        else:
            seen[place, view] = row
            rows.append(row)
    place_names = {name: number for number, name in enumerate(sorted({place for place, _ in seen}))}
    views = tuple(sorted({view for _, view in seen}))
    number = {view: k for k, view in enumerate(views)}
    return Registration(
        np.array(rows, dtype=np.int64),
        np.array([place_names[place] for place, _ in seen], dtype=np.int64),
        np.array([number[view] for _, view in seen], dtype=np.int64),
        tuple(known),
        views,
        without_view,
        copies,
    )


def matches(registered: Registration) -> Iterator[Match]:
    """Every two views that share a place; rows are of the registered images, in the order of the places."""
    of_view: list[dict[int, int]] = [{} for _ in registered.views]
    for row, (place, view) in enumerate(zip(registered.place, registered.view, strict=True)):
        of_view[view][int(place)] = row
    for one, other in combinations(range(len(of_view)), 2):
        both = sorted(of_view[one].keys() & of_view[other].keys())
        if both:
            rows = np.array([(of_view[one][place], of_view[other][place]) for place in both])
            values = zip(registered.columns, registered.views[one], registered.views[other], strict=True)
            yield Match(one, other, tuple(name for name, a, b in values if a != b), rows)


def agreement(features: NDArray[np.floating], match: Match, *, device: str = "cpu") -> Agreement:
    """Cosine and retrieval over one match; `features` [n, d] of the registered images.

    As plismbench: the images of both views are stacked, and an image looks for its partner among all others.
    It is itself left out by its place in the stack, and not as the first hit, which with equal features may
    be another; cosines are in float64.
    """
    import torch

    # Apple's GPUs do not know float64.
    place = device if device.startswith("cuda") else "cpu"
    a, b = (_unit(features[match.rows[:, side]], place) for side in (0, 1))
    partner = (a * b).sum(dim=1)
    ahead, level = torch.zeros(2, len(a)), torch.zeros(2, len(a))
    for side, (own, other) in enumerate(((a, b), (b, a))):
        for start in range(0, len(a), _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, len(a)))
            aim = partner[rows, None]
            within = own[rows] @ own.T
            within.diagonal(start).fill_(-torch.inf)  # an image is no hit of itself
            for near in (within, own[rows] @ other.T):
                ahead[side, rows] += (near > aim + _EQUAL).sum(dim=1).cpu()
                level[side, rows] += ((near - aim).abs() <= _EQUAL).sum(dim=1).cpu()
    # The partner is level with itself.
    nearer, tied = ahead.double().numpy(), np.maximum(level.double().numpy() - 1, 0)
    found = {k: np.clip((k - nearer) / (tied + 1), 0, 1).mean(axis=0) for k in TOP}
    return Agreement(np.clip(partner.cpu().numpy(), -1, 1), found)


def joined_groups(place: Ints, groups: Ints) -> Ints:
    """What is drawn as one [n]: images that share a place or a group, directly or by others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, owner = np.unique(groups, return_inverse=True)
    size = int(place.max()) + 1
    links = coo_array((np.ones(len(place)), (place, size + owner)), shape=(size + len(place),) * 2)
    _, member = connected_components(links, directed=False)
    _, joined = np.unique(member[place], return_inverse=True)
    return joined.astype(np.int64)


def of_matches(terms: Sequence[Floats], owners: Sequence[Ints], groups: int) -> Redrawn:
    """The median over matches of the mean over places, in every draw.

    `terms` per match [places] with the group that owns each place in `owners`. A match of which no place was
    drawn is left out of that draw.
    """
    pairs = list(zip(terms, owners, strict=True))
    total = np.stack([np.bincount(owner, weights=term, minlength=groups) for term, owner in pairs], axis=1)
    count = np.stack([np.bincount(owner, minlength=groups) for _, owner in pairs], axis=1)

    def redrawn(times: NDArray[np.int64]) -> Floats:
        values = np.empty(len(times))
        for start in range(0, len(times), _DRAWS_AT_ONCE):
            part = times[start : start + _DRAWS_AT_ONCE]
            drawn = part @ count
            means = np.where(drawn > 0, part @ total / np.maximum(drawn, 1), np.nan)
            known = np.isfinite(means).any(axis=1)
            values[start : start + len(part)] = np.nan
            if known.any():
                values[start : start + len(part)][known] = np.nanmedian(means[known], axis=1)
        return values

    return redrawn


def _unit(features: NDArray[np.floating], device: str) -> torch.Tensor:
    import torch

    x = torch.from_numpy(np.asarray(features, dtype=np.float64)).to(device)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
