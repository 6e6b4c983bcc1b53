"""A DataFrame of images, written as the CSV that the rest of histobench reads, and called by its own rows."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.api.validation import is_missing
from histobench.core.errors import HistobenchError
from histobench.core.parameters import retold
from histobench.roi.data.tables import FRAME_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from histobench.roi.data.roi_dataset import Problem, Reading

_NEEDED = ("image_path", "label")
#: What a UTF-8 text file cannot hold: halves of characters, and what ends a C string.
_NO_TEXT = re.compile("[\\0\ud800-\udfff]")


@dataclass(frozen=True)
class FrameTable:
    """Where the CSV is, and what each of its lines is called in the DataFrame."""

    path: Path
    rows: dict[int, str]  # line of the CSV -> "row 3 (index 'b') of the DataFrame"

    def in_rows(self, text: str) -> str:
        """The text with places in the CSV called by their rows of the DataFrame."""
        place = rf"{re.escape(str(self.path))}(?::(\d+))?"
        return re.sub(place, lambda found: self.rows.get(int(found[1] or 0), "the DataFrame"), text)

    @contextmanager
    def told_in_rows(self, parameter: str) -> Iterator[None]:
        """Errors inside that speak of the CSV speak of the parameter that held the DataFrame."""
        try:
            yield
        except HistobenchError as error:
            told = self.in_rows(str(error))
            if told == str(error):
                raise
            raise retold(error, f"{parameter}: {told}") from None

    def reading_in_rows(self, reading: Reading) -> Reading:
        """What was read, every image and problem with its row as its origin."""

        def renamed(problems: Sequence[Problem]) -> tuple[Problem, ...]:
            return tuple(replace(problem, origin=self.in_rows(problem.origin)) for problem in problems)

        places = {f"{self.path}:{line}": row for line, row in self.rows.items()}
        splits = {
            split: tuple(replace(image, origin=places.get(image.origin, image.origin)) for image in images)
            for split, images in reading.dataset.splits.items()
        }
        return replace(
            reading,
            dataset=replace(reading.dataset, splits=splits),
            problems=renamed(reading.problems),
            warnings=renamed(reading.warnings),
        )


def write_frame(frame: Any, more: Sequence[str], *, labelled: bool = True) -> FrameTable:
    """Write the DataFrame as the long CSV, into the cache folder under the hash of its content.

    `more` are columns that are asked for by name, beside the usual ones; `labelled` is false where the labels
    are among them.
    """
    import pandas as pd

    from histobench.core.files import write_text
    from histobench.core.folders import cache_dir

    if not isinstance(frame, pd.DataFrame) and hasattr(frame, "to_pandas") and hasattr(frame, "columns"):
        frame = frame.to_pandas()
    if not isinstance(frame, pd.DataFrame):
        raise HistobenchError(f"source: expected a path, a name or a DataFrame, found {type(frame).__name__}")
    chosen = _chosen(frame, more, needed=_NEEDED if labelled else _NEEDED[:1])
    if not len(frame):
        raise HistobenchError("source: the DataFrame has no rows")
    names = _row_names(frame.index)
    table = pd.DataFrame({column: _plain(values, column, names) for column, values in chosen.items()})
    paths = _paths(list(table["image_path"]), names)
    table["image_path"] = pd.Series(paths, dtype=object, index=table.index)
    _check_text(table, names)
    text = table.to_csv(index=False)
    target = cache_dir() / "frames" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    write_text(target, text)
    return FrameTable(target, dict(zip(_first_lines(text), names, strict=True)))


def _chosen(frame: pd.DataFrame, more: Sequence[str], *, needed: Sequence[str]) -> dict[str, pd.Series[Any]]:
    """The columns that are read, by what the CSV calls them."""
    from histobench.roi.data.sites import PLACE_COLUMNS, SITE_COLUMNS

    chosen: dict[str, pd.Series[Any]] = {}
    for column, known in FRAME_COLUMNS.items():
        # By the order of the names, not of the columns: a patient comes before a slide.
        found = next((name for name in known if _places(frame, name)), None)
        if found is not None:
            chosen[column] = _column(frame, found)
        elif column in needed:
            others = f" (nor {', '.join(known[1:])})"
            raise HistobenchError(f"source: the DataFrame has no column {column!r}{others}; {_has(frame)}")
    for name in more:
        if not _places(frame, name):
            raise HistobenchError(f"source: the DataFrame has no column {name!r}; {_has(frame)}")
        chosen.setdefault(name.lower(), _column(frame, name))
    placed = PLACE_COLUMNS if all(_places(frame, name) for name in PLACE_COLUMNS[:2]) else ()
    for name in (*SITE_COLUMNS, *placed):
        if _places(frame, name):
            chosen.setdefault(name, _column(frame, name))
    return chosen


def _places(frame: pd.DataFrame, name: str) -> list[int]:
    """Which columns are called so; one that is written in the same way goes before others."""
    texts = [str(item) for item in frame.columns]
    same = [place for place, text in enumerate(texts) if text == name]
    return same or [place for place, text in enumerate(texts) if text.lower() == name.lower()]


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    places = _places(frame, name)
    if len(places) > 1:
        raise HistobenchError(f"source: the DataFrame has {len(places)} columns {name!r}; keep one of them")
    return frame.iloc[:, places[0]]


def _has(frame: pd.DataFrame) -> str:
    shown = [str(item) for item in frame.columns[:12]]
    rest = "" if len(frame.columns) <= len(shown) else f", ... ({len(frame.columns)} in all)"
    return f"it has: {', '.join(shown)}{rest}" if shown else "it has no columns"


def _row_names(index: pd.Index[Any]) -> list[str]:
    """What each row is called: its position, and its index where that says something else."""
    return [
        f"row {row} of the DataFrame"
        if isinstance(label, int) and label == row
        else f"row {row} (index {label!r}) of the DataFrame"
        for row, label in enumerate(index.tolist())
    ]


def _plain(values: pd.Series[Any], column: str, names: Sequence[str]) -> pd.Series[Any]:
    """The column, if every cell is one value; bytes become text."""
    for value, row in zip(values, names, strict=True):
        if isinstance(value, list | tuple | dict | set) or getattr(value, "ndim", 0) != 0:
            raise HistobenchError(f"source: {row}: {column}: expected one value, found {_shown(value)}")
    if getattr(values.dtype, "kind", "") == "f" and _are_whole(values.dropna().to_numpy(float)):
        # Where one is missing, pandas keeps whole numbers as floats: patient 10 is no patient "10.0".
        values = values.astype("Int64")
    if any(isinstance(value, bytes) for value in values):
        values = values.astype(object).map(lambda it: os.fsdecode(it) if isinstance(it, bytes) else it)
    return values


def _are_whole(numbers: NDArray[np.float64]) -> bool:
    """Whether a column of floats [n] holds whole numbers that floats hold exactly."""
    return bool(((numbers == np.trunc(numbers)) & (np.abs(numbers) < 2**53)).all())


def _paths(values: list[Any], names: Sequence[str]) -> list[str]:
    """The paths, absolute: what is relative is meant from where the DataFrame was given."""
    missing = []
    found = []
    for value, row in zip(values, names, strict=True):
        if isinstance(value, str | os.PathLike):
            found.append(str(Path(value).expanduser().absolute()))
        elif not is_missing(value):
            raise HistobenchError(f"source: {row}: image_path: expected a path, found {_shown(value)}")
        if not isinstance(value, os.PathLike) and not (isinstance(value, str) and value.strip()):
            missing.append(row)
    if missing:
        others = f" (as {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise HistobenchError(f"source: {missing[0]} has no image_path{others}")
    return found


def _check_text(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse what no UTF-8 text file can hold, with the cell that holds it."""
    for column in table.columns:
        if _NO_TEXT.search(str(column)):
            raise HistobenchError(
                f"source: column {_shown(str(column))} is not valid Unicode text; rename it"
            )
        for value, row in zip(table[column], names, strict=True):
            if _NO_TEXT.search(str(value)):
                raise HistobenchError(
                    f"source: {row}: {column} {_shown(str(value))} is not valid Unicode text; "
                    f"rename the {'file' if column == 'image_path' else 'value'}"
                )


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}"


def _first_lines(text: str) -> Iterator[int]:
    """The line of the CSV that each row begins on; a cell may go over several."""
    reader = csv.reader(io.StringIO(text, newline=""))
    next(reader)
    begins = reader.line_num + 1
    for _ in reader:
        yield begins
        begins = reader.line_num + 1
