"""Where an image comes from: named columns (hospital, scanner, stain), and its place on a slide."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.tables import COLUMNS

#: Columns that are taken by themselves; others are asked for.
SITE_COLUMNS = ("site", "scanner", "stain", "staining", "center", "centre", "hospital", "pair", "group_label")
#: Says which images show the same tissue (registered copies); a name for a match, and no place.
PAIR_COLUMN = "pair"
#: The label of the patient or slide that an image belongs to, where it is another one than the image's own.
GROUP_LABEL = "group_label"
#: Of task folders: what is predicted for (a slide, or a patient with several), and the part of each fold.
SAMPLE, FOLDS = "sample", "folds"
#: Where a tile is on its slide: columns of a table.
PLACE_COLUMNS = ("x", "y", "slide")
#: Columns of datasets and of predictions that mean something else.
_TAKEN = frozenset(
    {*COLUMNS["image"], *COLUMNS["label"], *COLUMNS["split"], "group"}
    | {"img_name", "true_label", "predicted_label", "probabilities", "num_episodes"}
)

#: (column, value) of one image, "" where the value is not known.
Sites = tuple[tuple[str, str], ...]


def wanted_columns(names: Iterable[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The site columns among `names`: the usual ones, and those asked for, in the order of the table.

    >>> wanted_columns(["image_path", "scanner", "lot", "age"], ["Lot"])
    ('scanner', 'lot')
    """
    wanted = {*SITE_COLUMNS, *(name.lower() for name in asked)}
    return tuple(name for name in names if name in wanted)


def check_site_names(asked: Iterable[str]) -> None:
    """Raise if a column that means something else is asked for as a site."""
    for name in asked:
        if name.lower() in _TAKEN or not name.strip():
            raise HistobenchError(f"{name!r} cannot be a site column: the name has another meaning")


def found_in_path(path: str, regex: str, *, option: str) -> re.Match[str] | None:
    """Where the regular expression of an option fits the path or the file's name."""
    try:
        return re.search(regex, path) or re.search(regex, re.split(r"[/\\]", path)[-1])
    except re.error as error:
        raise HistobenchError(f"`{option}` {regex!r} is not a regular expression: {error}") from None


def sites_in_path(path: str, regex: str) -> dict[str, str] | None:
    """The sites that `regex` finds in a path: its named groups, else `site` is its first group or the match.

    `^` may stand for the beginning of the path or of the file's name. None where nothing is found.

    >>> sites_in_path("TUM/A_aperio-07.png", r"^(?P<hospital>[A-Z])_(?P<scanner>[a-z]+)")
    {'hospital': 'A', 'scanner': 'aperio'}
    """
    match = found_in_path(path, regex, option="site_regex")
    if not match:
        return None
    named = match.groupdict()
    check_site_names(named)
    if named:
        return {name.lower(): value or "" for name, value in named.items()}
    return {"site": (match[1] if match.re.groups else match[0]) or ""}


def as_sites(values: Mapping[str, str]) -> Sites:
    """The columns of one image as a value that can be compared and hashed."""
    return tuple(values.items())


def site_table(sites: Sequence[Sites]) -> dict[str, tuple[str, ...]]:
    """The columns of several images, each with one value per image; no columns where no image has any.

    >>> site_table([(("site", "a"),), (("site", "b"), ("scanner", "x"))])
    {'site': ('a', 'b'), 'scanner': ('', 'x')}
    """
    names = dict.fromkeys(name for row in sites for name, _ in row)
    rows = [dict(row) for row in sites]
    return {name: tuple(row.get(name, "") for row in rows) for name in names}


def is_place(column: str) -> bool:
    """Whether a column names a place, and not a match, a label, a sample or folds."""
    return column not in (PAIR_COLUMN, GROUP_LABEL, SAMPLE, FOLDS)


def coordinate(cell: str) -> float:
    """The number of a cell, NaN where there is none."""
    try:
        return float(cell)
    except ValueError:
        return float("nan")


class Place(NamedTuple):
    """Where a tile is: coordinates on a slide; `slide` is empty where it is not known."""

    x: float
    y: float
    slide: str = ""


@dataclass(frozen=True, eq=False)
class TilePlaces:
    """Where the tiles of a feature set are."""

    coords: NDArray[np.float64]  # [n, 2], x and y; NaN where they are not known
    slides: tuple[str, ...]  # [n], "" where not known

    @classmethod
    def of(cls, places: Sequence[Place | None]) -> TilePlaces | None:
        if all(place is None for place in places):
            return None
        known = [place or Place(np.nan, np.nan) for place in places]
        coords = np.array([(place.x, place.y) for place in known], dtype=np.float64)
        return cls(coords, tuple(place.slide for place in known))

    def take(self, rows: NDArray[np.int64]) -> TilePlaces:
        return TilePlaces(self.coords[rows], tuple(self.slides[row] for row in rows))

    def joined(self, other: TilePlaces) -> TilePlaces:
        return TilePlaces(np.concatenate([self.coords, other.coords]), self.slides + other.slides)

    def numbered(self, patients: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The slides, and which of them each tile is on; a tile without a slide is on its patient's."""
        owners = [slide or patient for slide, patient in zip(self.slides, patients, strict=True)]
        place = {name: number for number, name in enumerate(dict.fromkeys(owners))}
        return tuple(place), np.array([place[owner] for owner in owners], dtype=np.int64)
