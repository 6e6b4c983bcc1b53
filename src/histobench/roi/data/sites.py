"""Where an image comes from: named columns (hospital, scanner, stain), and its place on a slide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.tables import COLUMNS

SITE_COLUMNS = ("site", "scanner", "stain", "staining", "center", "centre", "hospital", "pair", "group_label")
#: Says which images show the same tissue (registered copies); a name for a match, and no place.
PAIR_COLUMN = "pair"
#: The label of the patient or slide that an image belongs to, where it is another one than the image's own.
GROUP_LABEL = "group_label"
#: Of task folders: what is predicted for (a slide, or a patient with several), and the part of each fold.
SAMPLE, FOLDS = "sample", "folds"
_ON_SLIDE = ("x", "y", "slide")
#: Columns of datasets and of predictions that mean something else.
_TAKEN = frozenset(
    {*COLUMNS["image"], *COLUMNS["label"], *COLUMNS["split"], "group"}
    | {"img_name", "true_label", "predicted_label", "probabilities", "num_episodes"}
)

#: (column, value) of one image, "" where the value is not known.
Sites = tuple[tuple[str, str], ...]


def wanted_columns(names: Iterable[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The site columns among `names`: the usual ones, and those asked for, in the order of the table."""
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
    """The sites that `regex` finds in a path: its named groups, else `site`; None where nothing is found."""
    match = found_in_path(path, regex, option="site_regex")
    if not match:
        return None
    named = match.groupdict()
    check_site_names(named)
    if named:
        return {name.lower(): value or "" for name, value in named.items()}
    return {"site": (match[1] if match.re.groups else match[0]) or ""}


def site_table(sites: Sequence[Sites]) -> dict[str, tuple[str, ...]]:
    """The columns of several images, each with one value per image; no columns where no image has any."""
    names = dict.fromkeys(name for row in sites for name, _ in row)
    rows = [dict(row) for row in sites]
    return {name: tuple(row.get(name, "") for row in rows) for name in names}


def is_place(column: str) -> bool:
    """Whether a column names a place, and not a match, a label, a sample or folds."""
    return column not in (PAIR_COLUMN, GROUP_LABEL, SAMPLE, FOLDS)


class Place(NamedTuple):
    """What a table says of a tile in typed columns: numbers (NaN where not known) and texts ("").

    A line here declares a column: tables, feature files, exports and data frames then have it.
    """

    x: float = math.nan
    y: float = math.nan
    slide: str = ""

    @classmethod
    def read(cls, cells: Mapping[str, Any]) -> Place:
        each = ((name, cells.get(name, "")) for name in PLACE_COLUMNS)
        typed: list[Any] = [_number(cell) if name in NUMBERS else cell for name, cell in each]
        return cls(*typed)

    @property
    def known(self) -> bool:
        return any(value == value and value != "" for value in self)


#: The typed columns, with what is in them where nothing is known, and those that are numbers.
PLACE_COLUMNS: Mapping[str, float | str] = Place._field_defaults
NUMBERS = tuple(name for name, unknown in PLACE_COLUMNS.items() if isinstance(unknown, float))


def place_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The typed columns among `names`; a slide says where x and y are, and means nothing without them."""
    found = [name for name in PLACE_COLUMNS if name in names]
    return tuple(found if {"x", "y"} <= {*found} else [name for name in found if name not in _ON_SLIDE])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


@dataclass(frozen=True, eq=False)
class TilePlaces:
    """The places of many tiles: a column [n] for each field of `Place`."""

    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, places: Sequence[Place | None]) -> TilePlaces | None:
        if all(place is None for place in places):
            return None
        values = zip(*(place or Place() for place in places), strict=True)
        return cls.read(dict(zip(PLACE_COLUMNS, values, strict=True)), len(places))

    @classmethod
    def read(cls, cells: Mapping[str, Sequence[Any] | NDArray[Any]], count: int) -> TilePlaces:
        """Columns of texts or numbers, typed; those that are not given are not known."""
        columns: dict[str, NDArray[Any]] = {}
        for name, unknown in PLACE_COLUMNS.items():
            values = cells.get(name, [unknown] * count)
            if name in NUMBERS:
                columns[name] = np.array([_number(cell) for cell in values])
            else:
                columns[name] = np.array(list(values), dtype=object)
        return cls(columns)

    @property
    def known(self) -> dict[str, NDArray[Any]]:
        """The columns that say anything."""
        every = self.columns.items()
        return {name: each for name, each in every if (each == each if name in NUMBERS else each != "").any()}

    @property
    def coords(self) -> NDArray[np.float64]:
        """x and y [n, 2], NaN where they are not known."""
        return np.stack([self.columns["x"], self.columns["y"]], axis=1)

    def row(self, row: int) -> Place:
        return Place(*(values.item(row) for values in self.columns.values()))

    def take(self, rows: NDArray[np.int64]) -> TilePlaces:
        return TilePlaces({name: values[rows] for name, values in self.columns.items()})

    def joined(self, other: TilePlaces) -> TilePlaces:
        both = {name: (values, other.columns[name]) for name, values in self.columns.items()}
        return TilePlaces({name: np.concatenate(parts) for name, parts in both.items()})

    def numbered(self, patients: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The slides, and which of them each tile is on; a tile without a slide is on its patient's."""
        owners = [slide or own for slide, own in zip(self.columns["slide"], patients, strict=True)]
        place = {name: number for number, name in enumerate(dict.fromkeys(owners))}
        return tuple(place), np.array([place[owner] for owner in owners], dtype=np.int64)
