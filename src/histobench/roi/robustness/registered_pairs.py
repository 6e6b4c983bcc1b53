"""Registered pairs: the same place of the same tissue, scanned or stained otherwise.

A *view* is what was scanned and stained in one way: the images that agree in every site column (a slide of
PLISM). Two views are compared over the places that both show: the cosine of the two images of a place, and
whether one finds the other among all images of both views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.roi.robustness.leaving_out import (
    Measure,
    NothingToCompareError,
    Range,
    Units,
    measured,
    units_of,
)
from histobench.roi.robustness.pack import Pack
from histobench.roi.robustness.site_neighbours import Floats, Ints

if TYPE_CHECKING:
    import torch

#: Hits that are looked through for the other image of a place, as plismbench does.
TOP = (1, 3, 5, 10)
#: What pairs of views that differ in more than one column are called after.
SEVERAL = "several"
#: Cosines closer than this are equal: more than float64 products of unit vectors are off.
_EQUAL = 1e-12
_ROWS_AT_ONCE = 1024
#: Hits of the retrieval that enters the score.
_SCORED = 10
_ONE_GROUP = "no interval: all places are connected through shared groups"


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
class PairAgreement:
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
        raise NothingToCompareError(
            "registered pairs need a column that says how images of a place differ, such as scanner or stain"
        )
    import pandas as pd

    table = pd.DataFrame({"": places, **known})  # no column has this name
    placed = table[""] != ""
    viewed = placed & (table[list(known)] != "").all(axis=1)
    first = table[viewed].drop_duplicates()
    every = list(map(tuple, first[list(known)].values.tolist()))
    views = tuple(sorted(set(every)))
    return Registration(
        first.index.to_numpy(dtype=np.int64),
        np.unique(first[""], return_inverse=True)[1].astype(np.int64),
        np.array([views.index(view) for view in every], dtype=np.int64),
        tuple(known),
        views,
        int((placed & ~viewed).sum()),
        int(viewed.sum()) - len(first),
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


def agreement(features: NDArray[np.floating], match: Match, *, device: str = "cpu") -> PairAgreement:
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
    return PairAgreement(np.clip(partner.cpu().numpy(), -1, 1), found)


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


def matches_without(terms: Sequence[Floats], owners: Sequence[Ints], units: int) -> Floats:
    """The median over matches of the mean over places, without each unit [units].

    `terms` per match [places] with the unit that owns each place in `owners`. A match that has lost all of
    its places is left out.
    """
    pairs = list(zip(terms, owners, strict=True))
    total = np.stack([np.bincount(owner, weights=term, minlength=units) for term, owner in pairs], axis=1)
    count = np.stack([np.bincount(owner, minlength=units) for _, owner in pairs], axis=1)
    left = count.sum(axis=0) - count
    means = np.where(left > 0, (total.sum(axis=0) - total) / np.maximum(left, 1), np.nan)
    values = np.full(units, np.nan)
    known = np.isfinite(means).any(axis=1)
    if known.any():
        values[known] = np.nanmedian(means[known], axis=1)
    return values


def _unit(features: NDArray[np.floating], device: str) -> torch.Tensor:
    import torch

    x = torch.from_numpy(np.asarray(features, dtype=np.float64)).to(device)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


def measure_pairs(
    features: NDArray[np.floating], registered: Registration, groups: Ints, *, device: str = "cpu"
) -> Pack:
    """The measures over all pairs of views, and over those that differ in one column alone or in several.

    `features` [n, d] and `groups` [n] of the registered images. Each measure is the median over pairs of
    views of the mean over the places that both show.
    """
    found = list(matches(registered))
    if not found:
        raise NothingToCompareError(
            "no place is shown twice; registered pairs need images of the same place (the same `pair`) that "
            "differ in scanner, stain or another site column"
        )
    owner = joined_groups(registered.place, groups)
    work = _PairWork(found, [agreement(features, match, device=device) for match in found], units_of(owner))
    kinds = sorted({match.kind for match in found})
    for kind in ("", *(kinds if len(kinds) > 1 or len(registered.columns) > 1 else ())):
        chosen = [k for k, match in enumerate(found) if not kind or match.kind == kind]
        work.median(_name("pair_cosine", kind), chosen, lambda each: each.cosine)
        for k in TOP:
            # Among fewer images than k every partner is found, whatever the encoder.
            searched = [at for at in chosen if 2 * len(found[at].rows) - 1 > k]
            work.median(_name(f"pair_top{k}", kind), searched, _found_in(k))
    known = [kind for kind in kinds if _name("pair_cosine", kind) in work.measures]
    parts = [_name(f"pair_top{_SCORED}", kind) for kind in known]
    work.mean("pair_score", ["pair_cosine", *(parts or [f"pair_top{_SCORED}"])])
    return Pack(work.measures, _details(found, work.agreements, registered))


def _name(measure: str, kind: str) -> str:
    return f"{measure}_other_{kind}" if kind else measure


def _found_in(k: int) -> Callable[[PairAgreement], Floats]:
    return lambda each: each.found[k]


class _PairWork:
    """The measures so far."""

    def __init__(self, found: Sequence[Match], agreements: Sequence[PairAgreement], units: Units) -> None:
        self.found, self.agreements, self.units = found, agreements, units
        self.measures: dict[str, Measure] = {}

    def median(self, name: str, chosen: Sequence[int], terms_of: Callable[[PairAgreement], Floats]) -> None:
        """Median over the chosen matches of the mean over places."""
        if not chosen:
            most = max(len(match.rows) for match in self.found)
            self.measures[name] = Measure(
                None, reason=f"two views share at most {most} places; too few to compare encoders"
            )
            return
        terms = [terms_of(self.agreements[k]) for k in chosen]
        value = float(np.median([each.mean() for each in terms]))
        owners = [self.units.of_image[self.found[k].rows[:, 0]] for k in chosen]
        self._add(name, value, matches_without(terms, owners, self.units.count))

    def mean(self, name: str, parts: Sequence[str]) -> None:
        found = [self.measures[part] for part in parts]
        values = [each.value for each in found]
        if any(value is None for value in values):
            reason = next(each.reason for each in found if each.value is None)
            self.measures[name] = Measure(None, reason=reason)
            return
        value = float(np.mean([value for value in values if value is not None]))
        left = [each.left_out for each in found if each.left_out is not None]
        self._add(name, value, np.mean(left, axis=0) if left else np.full(self.units.count, np.nan))

    def _add(self, name: str, value: float, without: Floats) -> None:
        if self.units.groups < 2:
            self.measures[name] = Measure(value, reason=_ONE_GROUP)
            return
        # Cosines lie in [-1, 1], and so does a mean of one with shares.
        within: Range = "share" if name.startswith("pair_top") else "contrast"
        self.measures[name] = measured(value, without, self.units, within=within)


def _details(
    found: Sequence[Match], agreements: Sequence[PairAgreement], registered: Registration
) -> Mapping[str, object]:
    names = [" / ".join(view) for view in registered.views]
    kinds = sorted({match.kind for match in found})
    return {
        "places": len(np.unique(registered.place)),
        "view_columns": list(registered.columns),
        "pairs_of_views": {kind: sum(match.kind == kind for match in found) for kind in kinds},
        "pairs": [
            {
                "first": names[match.first],
                "second": names[match.second],
                "other": list(match.differ),
                "places": len(match.rows),
                "cosine": float(each.cosine.mean()),
                **{f"top{k}": float(values.mean()) for k, values in each.found.items()},
            }
            for match, each in zip(found, agreements, strict=True)
        ],
    }
