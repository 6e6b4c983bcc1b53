"""Tables of images: CSV files and DataFrames, the names of their columns, and how their text is read."""

from __future__ import annotations

import codecs
import csv
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import regular

if TYPE_CHECKING:
    import pandas as pd

#: What columns of CSV files and DataFrames are called; of several, the first that is there is taken. Case
#: does not matter. A patient comes before a slide.
COLUMNS = {
    "image": ("image_path", "path", "paths", "file", "filename", "image"),
    "label": ("label", "labels", "class"),
    "split": ("split", "splits"),
    "group": ("group", "groups", "patient", "patient_id", "case_id", "slide", "slide_id"),
}
#: What a UTF-8 text file cannot hold: halves of characters, and what ends a C string.
_NO_TEXT = re.compile("[\\0\ud800-\udfff]")


@dataclass(frozen=True)
class Sheet(ABC):
    """The header of a table and its rows of text; `called` is what messages call the table."""

    called: str
    header: tuple[str, ...]  # in lower case
    #: The folder that relative paths begin in.
    base: Path

    @abstractmethod
    def origin(self, line: int) -> str:
        """Where a row is."""

    @abstractmethod
    def rows(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[str] | None]]:
        """The cells of some columns, row by row with the line; None for a row that is too long."""


@dataclass(frozen=True)
class CsvSheet(Sheet):
    """A CSV file. Separator and encoding are found by looking."""

    path: Path
    separator: str
    encoding: str

    @classmethod
    def open(cls, path: Path) -> CsvSheet:
        """The table of a file that is there and has a header."""
        encoding = _encoding(path, "dataset CSV")
        with path.open(encoding=encoding, errors="replace", newline="") as lines:
            first = next((line for line in lines if line.strip()), "")
        bare = re.sub(r'"[^"]*"', "", first)
        separator = max(",;\t|", key=bare.count)
        sheet = cls(str(path), (), path.parent, path, separator, encoding)
        start, cells = next(sheet._lines(), (1, []))
        header = [cell.lower() for cell in cells]
        double = next((name for name in header if name and header.count(name) > 1), None)
        if double is not None:
            raise HistobenchError(f"{path}:{start}: the column {double!r} is there twice")
        return replace(sheet, header=tuple(header))

    def origin(self, line: int) -> str:
        return f"{self.path}:{line}"

    def rows(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[str] | None]]:
        lines = self._lines()
        next(lines)  # the header
        width, places = len(self.header), [self.header.index(name) for name in names]
        for line, cells in lines:
            if any(cells[width:]):
                yield line, None
                continue
            cells += [""] * (width - len(cells))
            yield line, [cells[place] for place in places]

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The rows that are not blank, each with the line that it begins on."""
        line = 1
        with self.path.open(encoding=self.encoding, errors="replace", newline="") as lines:
            # strict: a quote that is never closed must not swallow the rest of the file.
            reader = csv.reader(lines, delimiter=self.separator, strict=True)
            try:
                for cells in reader:
                    start, line = line, reader.line_num + 1
                    cells = [cell.strip() for cell in cells]
                    if any(cells):
                        yield start, cells
            except csv.Error as error:
                raise HistobenchError(f"{self.path}:{line}: not a valid CSV row: {error}") from None


@dataclass(frozen=True)
class FrameSheet(Sheet):
    """A pandas DataFrame (or one of polars or Arrow); rows are called by their number and index."""

    frame: Any = field(repr=False)
    #: The column of paths, whose cells must be paths.
    paths: str | None = None

    @classmethod
    def of(cls, frame: Any, image_column: str | None, root: str | None) -> FrameSheet:
        """The table of a DataFrame; relative paths begin in `root`, or the current folder."""
        import pandas as pd

        if not isinstance(frame, pd.DataFrame) and hasattr(frame, "to_pandas") and hasattr(frame, "columns"):
            frame = frame.to_pandas()
        if not isinstance(frame, pd.DataFrame):
            raise HistobenchError(f"expected a path, a name or a DataFrame, found {type(frame).__name__}")
        header = [str(name) for name in frame.columns]
        for name in header:
            if _NO_TEXT.search(name):
                raise HistobenchError(f"column {_shown(name)} is not valid Unicode text; rename it")
        lower = tuple(name.lower() for name in header)
        wanted = (image_column.lower(),) if image_column else COLUMNS["image"]
        paths = next((name for name in wanted if name in lower), None)
        if header and not len(frame):
            raise HistobenchError("the DataFrame has no rows")
        return cls("the DataFrame", lower, Path(root or "").expanduser().absolute(), frame, paths)

    def origin(self, line: int) -> str:
        label = self.frame.index[line]
        label = getattr(label, "item", lambda: label)()
        index = "" if isinstance(label, int) and label == line else f" (index {label!r})"
        return f"row {line}{index} of the DataFrame"

    def rows(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[str] | None]]:
        columns = []
        for name in names:
            places = [place for place, other in enumerate(self.header) if other == name]
            if len(places) > 1:
                raise HistobenchError(f"the DataFrame has {len(places)} columns {name!r}; keep one of them")
            columns.append(self._texts(self.frame.iloc[:, places[0]], name))
        yield from enumerate(zip(*columns, strict=True))

    def _texts(self, values: pd.Series[Any], name: str) -> Iterable[str]:
        """The cells of a column as text; a value that no text stands for is an error with its row."""
        if getattr(values.dtype, "kind", "") == "f":
            # Where one is missing, pandas keeps whole numbers as floats: patient 10 is no patient "10.0".
            numbers = values.dropna().to_numpy(float)
            is_whole = ((numbers == numbers.round()) & (abs(numbers) < 2**53)).all()
            values = values.astype("Int64") if is_whole else values
        missing = values.isna().to_numpy(bool)
        for line, value in enumerate(values):
            if isinstance(value, list | tuple | dict | set) or getattr(value, "ndim", 0) != 0:
                raise HistobenchError(
                    f"{self.origin(line)}: {name}: expected one value, found {_shown(value)}"
                )
            if missing[line]:
                yield ""
                continue
            if name == self.paths and not isinstance(value, str | bytes | os.PathLike):
                raise HistobenchError(f"{self.origin(line)}: {name}: expected a path, found {_shown(value)}")
            text = (os.fsdecode(value) if isinstance(value, bytes | os.PathLike) else str(value)).strip()
            if _NO_TEXT.search(text):
                what = "file" if name == self.paths else "value"
                raise HistobenchError(
                    f"{self.origin(line)}: {name} {_shown(text)} is not valid Unicode text; rename the {what}"
                )
            if name == self.paths and text:
                text = str(self.base / Path(text).expanduser())
            yield text


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}"


def read_text(path: str | Path, *, what: str) -> str:
    """A text file without its byte-order mark: UTF-8, UTF-16 with a mark, or Windows-1252."""
    with open(path, encoding=_encoding(Path(path), what), errors="replace", newline="") as handle:
        text = handle.read()
    if not text.strip():
        raise HistobenchError(f"{what} {path} is empty")
    return text


def _encoding(path: Path, what: str) -> str:
    """How a text file is encoded; it is read line by line, for tables may be larger than the memory."""
    if not path.exists():
        raise HistobenchError(f"{what} {path} does not exist{_nearest_file(path)}")
    found, is_empty = "utf-8-sig", True
    with regular(path).open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return "utf-16"
            if b"\0" in line:
                raise HistobenchError(
                    f"{path}:{number}: the {what} holds a NUL byte; is it really a text file?"
                )
            is_empty = is_empty and not line.removeprefix(codecs.BOM_UTF8).strip()
            try:
                line.decode()
            except UnicodeDecodeError:
                found = "cp1252"
    if is_empty:
        raise HistobenchError(f"{what} {path} is empty")
    return found


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist either"
    hint = did_you_mean(path.name, os.listdir(path.parent))
    return f"; {hint}" if hint.startswith("did you mean") else ""
