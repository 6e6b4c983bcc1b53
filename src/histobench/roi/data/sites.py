"""Named columns beside an image: where it comes from (hospital, scanner, stain), and targets to predict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.tables import CSV_COLUMNS
from histobench.roi.task_catalogue import CLASS, MULTILABEL, ORDINAL, SURVIVAL, TARGETS, a_target

#: Columns that are taken by themselves; others are asked for.
SITE_COLUMNS = ("site", "scanner", "stain", "staining", "center", "centre", "hospital", "pair", "group_label")
#: Says which images show the same tissue (registered copies); a name for a match, and no place.
PAIR_COLUMN = "pair"
#: The label of the patient or slide that an image belongs to, where it is another one than the image's own.
GROUP_LABEL = "group_label"
#: Columns of targets are known by this among the sites, with which they travel to the feature files.
_TARGET = "target:"
#: Where a tile is on its slide: columns of a table, and what they are known by among the sites.
PLACE_COLUMNS = ("x", "y", "slide")
_TILE = "tile:"
PLACE_KEYS = tuple(f"{_TILE}{name}" for name in PLACE_COLUMNS)
#: Columns of datasets and of predictions that mean something else.
_TAKEN = frozenset(
    {name for names in CSV_COLUMNS.values() for name in names}
    | {"img_name", "true_label", "predicted_label", "probabilities", "num_episodes"}
)

#: (column, value) of one image, "" where the value is not known.
Sites = tuple[tuple[str, str], ...]


def wanted_columns(names: Iterable[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The site columns among `names`: the usual ones, and those asked for, in the order of the table.

    >>> wanted_columns(["image_path", "scanner", "lot", "age"], ["Lot"])
    ('scanner', 'lot')
    """
    wanted = {*SITE_COLUMNS, *PLACE_KEYS, *(name.lower() for name in asked)}
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
    """Whether a column names a place, and not a match, a label, a target or coordinates."""
    return column not in (PAIR_COLUMN, GROUP_LABEL) and not column.startswith((_TARGET, _TILE))


def place_sites(x: float, y: float, slide: str) -> dict[str, str]:
    """Where a tile is, as features keep it.

    >>> place_sites(512.0, 0.5, "S1")
    {'tile:x': '512', 'tile:y': '0.5', 'tile:slide': 'S1'}
    """
    return dict(zip(PLACE_KEYS, (f"{x:.12g}", f"{y:.12g}", slide), strict=True))


@dataclass(frozen=True)
class TilePlaces:
    """Where the tiles of a feature set are: coordinates on slides."""

    coords: NDArray[np.float64]  # [n, 2], x and y; NaN where they are not known
    slides: tuple[str, ...]
    slide_of: NDArray[np.int64]  # [n]

    @classmethod
    def of(cls, sites: Mapping[str, Sequence[str]], patients: Sequence[str]) -> TilePlaces | None:
        """The places of tiles; None without coordinates. A tile without a slide is on that of its patient."""
        if not {*PLACE_KEYS[:2]} <= set(sites):
            return None
        coords = np.array([[coordinate(cell) for cell in sites[key]] for key in PLACE_KEYS[:2]]).T
        named = sites.get(PLACE_KEYS[2]) or ("",) * len(patients)
        owners = [slide or patient for slide, patient in zip(named, patients, strict=True)]
        place = {name: number for number, name in enumerate(dict.fromkeys(owners))}
        slide_of = np.array([place[owner] for owner in owners], dtype=np.int64)
        return cls(coords, tuple(place), slide_of) if np.isfinite(coords).all(axis=1).any() else None


def coordinate(cell: str) -> float:
    """A coordinate of a tile from its cell; NaN where there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


# Targets: what is predicted where it is not one class per image.

#: A column with more different levels than this may be a measurement.
_MOST_LEVELS = 20
_YES_OR_NO = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}


@dataclass(frozen=True)
class TargetColumns:
    """The kind of a target, and the columns of the table that hold it."""

    kind: str
    names: tuple[str, ...]

    @classmethod
    def asked(cls, kind: str, columns: Sequence[str]) -> TargetColumns | None:
        """What `target` and `target_columns` ask for; None for classes."""
        if kind == CLASS:
            if columns:
                raise HistobenchError(f"`target_columns` needs `target`: one of {', '.join(TARGETS)}")
            return None
        usual = TARGETS[kind].columns
        names = tuple(dict.fromkeys(name.strip().lower() for name in columns)) or usual
        if kind == MULTILABEL and len(names) < 2:
            raise HistobenchError(
                "`target` multilabel needs `target_columns`: two or more columns of 0 and 1"
            )
        if kind != MULTILABEL and len(names) != len(usual):
            what = " and ".join(usual)
            raise HistobenchError(f"`target_columns`: {a_target(kind)} needs {len(usual)} ({what})")
        return cls(kind, names)

    @classmethod
    def found_in(cls, columns: Iterable[str]) -> TargetColumns | None:
        """The target among the columns of features or images; None where they have classes.

        >>> TargetColumns.found_in(["site", "target:regression:age"])
        TargetColumns(kind='regression', names=('age',))
        """
        found = [column.removeprefix(_TARGET) for column in columns if column.startswith(_TARGET)]
        if not found:
            return None
        return cls(found[0].partition(":")[0], tuple(name.partition(":")[2] for name in found))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{_TARGET}{self.kind}:{name}" for name in self.names)

    def row(self, cells: Sequence[str]) -> tuple[float, ...]:
        """The target of one image from its cells; an error says which of them is wrong."""
        return tuple(self._number(name, cell) for name, cell in zip(self.names, cells, strict=True))

    def _number(self, name: str, cell: str) -> float:
        if not cell.strip():
            raise HistobenchError(f"no {name}")
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if self.kind == MULTILABEL or (self.kind == SURVIVAL and name == self.names[1]):
            if cell.strip().lower() not in _YES_OR_NO:
                zero = "0 (censored)" if self.kind == SURVIVAL else "0"
                raise HistobenchError(f"{name} {cell!r} is not {zero} or 1 (`target` {self.kind})")
            return _YES_OR_NO[cell.strip().lower()]
        if not math.isfinite(number):
            raise HistobenchError(f"{name} {cell!r} is not a number (`target` {self.kind})")
        if self.kind == ORDINAL and not number.is_integer():
            raise HistobenchError(f"{name} {cell!r} is not a whole number (`target` {self.kind})")
        if self.kind == SURVIVAL and number <= 0:
            raise HistobenchError(f"{name} {cell!r} is not above 0 (`target` {self.kind})")
        return number

    def values(self, sites: Mapping[str, Sequence[str]]) -> NDArray[np.float64]:
        """The target of every image [n, columns] from the columns of a feature set, checked as a whole."""
        missing = [key for key in self.keys if key not in sites]
        if missing:
            raise HistobenchError(f"the features have no column {missing[0].rpartition(':')[2]!r}")
        rows = [self.row(cells) for cells in zip(*(sites[key] for key in self.keys), strict=True)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))

    def problem(self, values: NDArray[np.float64]) -> str:
        """What is wrong with a target [n, columns] as a whole, in one line; empty where nothing is."""
        if self.kind == SURVIVAL and len(values) and not values[:, 1].any():
            return f"{self.names[1]} is 0 everywhere: without any event there is nothing to learn"
        if self.kind == ORDINAL and len(levels := np.unique(values)) > _MOST_LEVELS:
            return f"{self.names[0]} has {len(levels)} levels and looks continuous: give `target` regression"
        checked = self.names[:1] if self.kind == SURVIVAL else self.names
        for name, column in zip(checked, values.T, strict=False):
            if len(column) and (column == column[0]).all():
                return f"{name} is {column[0]:g} everywhere: there is nothing to predict"
        return ""
