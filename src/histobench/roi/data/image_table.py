"""The one table that every reader fills: packed typed columns, a row of which is an image.

Ten million images need less than a gigabyte. A split is a view of the table: the numbers of its rows.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.sites import NUMBERS, PLACE_COLUMNS, Place, Sites

Rows = NDArray[np.int32]
#: A table of at most so many rows keeps its images: they are looked at again and again.
KEPT = 16_384


class RoiImage(NamedTuple):
    """One labelled tissue region. `origin` is where it was listed, for error messages ("file.csv:12").

    `group` is the patient or slide; `sites` are named columns beside it, such as hospital and scanner.
    """

    path: Path
    label: int
    name: str
    origin: str
    group: str | None = None
    sites: Sites = ()
    target: tuple[float, ...] = ()
    place: Place | None = None
    mask: Path | None = None


class Texts(Sequence[str]):
    """Texts that are mostly different, packed into one piece of memory."""

    def __init__(self) -> None:
        self._data, self._ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        self._data += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        return self._data[self._ends[row] : self._ends[row + 1]].decode("utf-8", "surrogateescape")


class Categories(Sequence[str | None]):
    """Texts that repeat: each is kept once, and a row is its number; -1 is None."""

    def __init__(self, rows: int = 0) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._codes = array("i", [-1]) * rows

    def append(self, text: str | None) -> None:
        if text is None:
            self._codes.append(-1)
            return
        if text not in self._numbers:
            self._numbers[text] = len(self.names)
            self.names.append(text)
        self._codes.append(self._numbers[text])

    @property
    def codes(self) -> NDArray[np.int32]:
        return np.frombuffer(self._codes, dtype=np.intc)

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: Any) -> Any:
        code = self._codes[row]
        return self.names[code] if code >= 0 else None


@dataclass
class ImageColumns:
    """The columns of a table while it is read, and afterwards; `origin` says where a line is."""

    root: Path
    origin: Callable[[int], str] | None = None  # None: an image's origin is its path
    written: Texts = field(default_factory=Texts)
    lines: array[int] = field(default_factory=lambda: array("i"))
    splits: array[int] = field(default_factory=lambda: array("b"))  # place in SPLITS, -1 for none
    label_texts: Categories = field(default_factory=Categories)
    groups: Categories = field(default_factory=Categories)
    sites: dict[str, Categories] = field(default_factory=dict)
    target: array[float] = field(default_factory=lambda: array("d"))
    width: int = 0  # numbers per row of the target
    places: dict[str, Any] = field(default_factory=dict)  # a column for each field of a place, up to the last
    masks: Texts = field(default_factory=Texts)  # empty where no image has one
    labels: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    by_path: bool = False  # names are paths: file names are not unique

    def __len__(self) -> int:
        return len(self.written)

    def add(
        self,
        line: int,
        split: int,
        path: str,
        label: str,
        group: str | None,
        sites: Mapping[str, str],
        target: Sequence[float] = (),
        place: Place | None = None,
        mask: str = "",
    ) -> None:
        """Add a row; `label` is still a text."""
        for name in sites:
            if name not in self.sites:
                self.sites[name] = Categories(len(self))
        for name, column in self.sites.items():
            column.append(sites.get(name, ""))
        if place is not None and place.known:
            if not self.places:
                self.places = {
                    name: array("d") if name in NUMBERS else Categories() for name in PLACE_COLUMNS
                }
            for each in (*[Place()] * (len(self) - len(self.places["x"])), place):
                for column, value in zip(self.places.values(), each, strict=True):
                    column.append(value)
        self.written.append(path)
        self.lines.append(line)
        self.splits.append(split)
        self.label_texts.append(label)
        self.groups.append(group)
        self.target.extend(target)
        if mask:
            self.masks.append(mask)

    def path(self, row: int) -> Path:
        return self._located(self.written[row])

    def _located(self, written: str) -> Path:
        return Path(os.path.join(self.root, written if self.origin is None else os.path.expanduser(written)))

    def row_origin(self, row: int) -> str:
        return str(self.path(row)) if self.origin is None else self.origin(self.lines[row])

    def image(self, row: int) -> RoiImage:
        written, path = self.written[row], self.path(row)
        place = None
        if self.places and row < len(self.places["x"]):
            place = Place(*(column[row] for column in self.places.values()))
        return RoiImage(
            path,
            int(self.labels[row]),
            written if self.by_path else file_name(written),
            self.row_origin(row),
            self.groups[row],
            tuple((name, column[row] or "") for name, column in self.sites.items()),
            tuple(self.target[self.width * row : self.width * (row + 1)]),
            place if place is not None and place.known else None,
            self._located(self.masks[row]) if len(self.masks) else None,
        )

    def same_names(self) -> bool:
        """Whether two images have the same file name."""
        alike = _likely_equal(map(file_name, self.written), len(self))
        found = ({self.written[row] for row in rows} for rows in alike)
        return any(len(set(map(file_name, paths))) < len(paths) for paths in found)

    def repeated(self) -> Iterator[list[int]]:
        """The rows of every path that is listed more than once, in their order."""
        for rows in _likely_equal(self.written, len(self)):
            by_path: dict[str, list[int]] = {}
            for row in rows:
                by_path.setdefault(self.written[row], []).append(row)
            yield from (same for same in by_path.values() if len(same) > 1)


def _likely_equal(texts: Iterable[str], count: int) -> Iterator[list[int]]:
    """The numbers of texts with equal hashes, in their order, without a copy of the texts."""
    hashes = np.fromiter(map(hash, texts), np.int64, count)
    order = np.argsort(hashes, kind="stable")
    bounds = np.flatnonzero(np.concatenate([[True], hashes[order][1:] != hashes[order][:-1], [True]]))
    for start in np.flatnonzero(np.diff(bounds) > 1).tolist():
        yield order[bounds[start] : bounds[start + 1]].tolist()


@dataclass(frozen=True, eq=False, repr=False)
class ImageTable(Sequence[RoiImage]):
    """Some rows of a table, as a sequence of images."""

    columns: ImageColumns
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> RoiImage: ...
    @overload
    def __getitem__(self, index: slice) -> ImageTable: ...
    def __getitem__(self, index: int | slice) -> RoiImage | ImageTable:
        if isinstance(index, slice):
            return replace(self, rows=self.rows[index])
        return self.columns.image(int(self.rows[index]))

    def __iter__(self) -> Iterator[RoiImage]:
        return iter(self._kept) if len(self) <= KEPT else map(self.columns.image, map(int, self.rows))

    @cached_property
    def _kept(self) -> list[RoiImage]:
        return [self.columns.image(row) for row in self.rows.tolist()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} images>"

    def path(self, row: int) -> Path:
        return self.columns.path(int(self.rows[row]))

    def take(self, rows: NDArray[np.int64]) -> ImageTable:
        return replace(self, rows=self.rows[rows])


def labels_of(images: Sequence[RoiImage]) -> NDArray[np.int64]:
    if isinstance(images, ImageTable):
        return images.columns.labels[images.rows].astype(np.int64)
    return np.array([image.label for image in images], dtype=np.int64)


def groups_of(images: Sequence[RoiImage]) -> list[str | None]:
    if isinstance(images, ImageTable):
        groups = images.columns.groups
        return [groups[row] for row in images.rows.tolist()]
    return [image.group for image in images]


def file_name(written: str) -> str:
    """The name of the file at a path.

    >>> file_name("a/1.png"), file_name("a\\\\1.png")
    ('1.png', '1.png')
    """
    # A path written on Windows keeps its backslashes in the table.
    if "\\" in written:
        return PureWindowsPath(written).name
    name = written.rpartition("/")[2]
    return name if name not in ("", ".", "..") else PurePosixPath(written).name
