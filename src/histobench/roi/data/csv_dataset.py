"""Datasets listed in a CSV file, in the wide or the long layout."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.data.columns import CSV_COLUMNS
from histobench.roi.data.dataset import SPLITS, RoiDataset, RoiImage
from histobench.roi.data.image_names import image_names
from histobench.roi.data.labels import classes_of, label_reader
from histobench.roi.data.problem import Problem, Reading
from histobench.roi.data.sites import (
    Sites,
    as_sites,
    check_site_names,
    sites_in_path,
    wanted_columns,
)
from histobench.roi.data.split import SPLIT_WORDS, arrange, group_of
from histobench.roi.data.text_file import read_text

_EMPTY = ("", "nan", "NaN")  # how spreadsheets and pandas fill the shorter columns
_LAYOUTS = "train_path,train_label,val_path,val_label,test_path,test_label or image_path,label,split[,group]"


@dataclass(frozen=True)
class _Row:
    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True)
class _Entry:
    """One listed image, still as text; without a `split` it is yet to be assigned to one."""

    line: int
    split: str | None
    path: str
    label: str
    group: str | None
    sites: Sites = ()


def scan_csv(
    path: str | Path,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    split: tuple[float, float, float] | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    site_regex: str | None = None,
    site_columns: Sequence[str] = (),
    seed: int = 0,
) -> Reading:
    """Read every row that can be read and collect what is wrong with the others.

    Paths are absolute or relative to the CSV. Without `classes` they come from the labels. A long CSV
    without a `split` column is split by `split` shares, whole groups at a time. The usual site columns are
    taken by themselves, others by `site_columns`.
    """
    path = Path(path)
    problems: list[Problem] = []
    header, rows = _table(path, problems)
    check_site_names(site_columns)
    entries = _entries(
        path, header, rows, problems, split=split, group_column=group_column, site_columns=site_columns
    )
    # What a path says goes before a column.
    if group_regex is not None:
        entries = _from_paths(path, entries, problems, ("group", group_regex), _with_group)
    if site_regex is not None:
        entries = _from_paths(path, entries, problems, ("site", site_regex), _with_sites)
    texts = [entry.label for entry in entries]
    classes = tuple(classes) if classes is not None else classes_of(texts)
    read_label = label_reader(texts, classes)
    placed: list[tuple[str | None, RoiImage]] = []
    for entry, image_name in zip(entries, image_names([e.path for e in entries]), strict=True):
        origin = f"{path}:{entry.line}"
        try:
            label = read_label(entry.label)
        except HistobenchError as error:
            problems.append(Problem(origin, str(error), "label"))
            continue
        file = path.parent / Path(entry.path).expanduser()
        placed.append((entry.split, RoiImage(file, label, image_name, origin, entry.group, entry.sites)))
    if not entries and not problems:
        raise HistobenchError(f"{path} lists no images")
    splits = arrange(placed, split, seed=seed)
    problems.sort(key=lambda problem: int(problem.origin.rpartition(":")[2]))
    return Reading(RoiDataset(name or path.stem, classes, splits), tuple(problems))


def _table(path: Path, problems: list[Problem]) -> tuple[list[str], list[_Row]]:
    """The header and the rows that have no more cells than it; blank rows are left out."""
    text = read_text(path, what="dataset CSV")
    first = text.lstrip().splitlines()[0]
    delimiter = max(",;\t", key=first.count)
    # strict: a quote that is never closed must not swallow the rest of the file.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[_Row] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not header:
                header = _header(path, start, cells)
            elif any(cells[len(header) :]):
                problems.append(
                    Problem(f"{path}:{start}", f"{len(cells)} cells where the header has {len(header)}")
                )
            else:
                padded = cells + [""] * (len(header) - len(cells))
                rows.append(_Row(start, dict(zip(header, padded, strict=False))))
    except csv.Error as error:
        raise HistobenchError(f"{path}:{line}: not a valid CSV row: {error}") from None
    return header, rows


def _header(path: Path, line: int, cells: list[str]) -> list[str]:
    names = [cell.lower() for cell in cells]
    double = next((name for name in names if name and names.count(name) > 1), None)
    if double is not None:
        raise HistobenchError(f"{path}:{line}: the column {double!r} is there twice")
    return names


def _entries(
    path: Path,
    header: Sequence[str],
    rows: Sequence[_Row],
    problems: list[Problem],
    *,
    split: tuple[float, float, float] | None,
    group_column: str | None,
    site_columns: Sequence[str],
) -> list[_Entry]:
    if any(f"{word}_path" in header or f"{word}_label" in header for word in SPLITS):
        if split is not None:
            raise HistobenchError(f"{path} says itself what is train and test; leave out `split`")
        return _wide(path, header, rows, problems, group_column=group_column, site_columns=site_columns)
    return _long(
        path,
        header,
        rows,
        problems,
        splitting=split is not None,
        group_column=group_column,
        site_columns=site_columns,
    )


def _wide(
    path: Path,
    header: Sequence[str],
    rows: Sequence[_Row],
    problems: list[Problem],
    *,
    group_column: str | None,
    site_columns: Sequence[str],
) -> list[_Entry]:
    present = [word for word in SPLITS if f"{word}_path" in header or f"{word}_label" in header]
    for word in present:
        for column in (f"{word}_path", f"{word}_label"):
            _require(path, column, header)
    entries = []
    for word in present:
        for name in site_columns:
            _require(path, f"{word}_{name.lower()}", header)
        there = [column.removeprefix(f"{word}_") for column in header if column.startswith(f"{word}_")]
        sited = wanted_columns(there, site_columns)
        for row in rows:
            file, label = row.cells[f"{word}_path"], row.cells[f"{word}_label"]
            if file in _EMPTY and label in _EMPTY:
                continue
            if group_column:
                _require(path, f"{word}_{group_column.lower()}", header)
            group = row.cells.get(f"{word}_{(group_column or 'group').lower()}") or None
            sites = as_sites({name: _known(row.cells[f"{word}_{name}"]) for name in sited})
            entry = _Entry(row.line, word, file, label, group, sites)
            if _complete(path, entry, f"{word}_path", f"{word}_label", problems):
                entries.append(entry)
    return entries


def _long(
    path: Path,
    header: Sequence[str],
    rows: Sequence[_Row],
    problems: list[Problem],
    *,
    splitting: bool,
    group_column: str | None,
    site_columns: Sequence[str],
) -> list[_Entry]:
    file_column = next((column for column in CSV_COLUMNS["image_path"] if column in header), "image_path")
    asked = [name.lower() for name in (group_column, *site_columns) if name]
    for column in (file_column, "label", *asked):
        _require(path, column, header)
    if splitting and "split" in header:
        raise HistobenchError(f"{path} has a split column; leave out `split`, or remove the column")
    if not splitting and "split" not in header:
        raise HistobenchError(
            f"{path} has no split column; add one (train, val or test), or give shares: `split` 0.7/0.1/0.2"
        )
    sited = wanted_columns(header, site_columns)
    entries = []
    for row in rows:
        split = None if splitting else SPLIT_WORDS.get(row.cells["split"].lower())
        group = row.cells.get((group_column or "group").lower()) or None
        sites = as_sites({name: _known(row.cells[name]) for name in sited})
        entry = _Entry(row.line, split, row.cells[file_column], row.cells["label"], group, sites)
        if not splitting and split is None:
            word = row.cells["split"]
            message = f"split {word!r} is not train, val or test" if word else "no split"
            problems.append(Problem(f"{path}:{row.line}", message))
        elif _complete(path, entry, file_column, "label", problems):
            entries.append(entry)
    return entries


def _require(path: Path, column: str, header: Sequence[str]) -> None:
    if column not in header:
        if len(header) == 1:
            raise HistobenchError(f"{path} is not a CSV with the columns {_LAYOUTS}")
        hint = did_you_mean(column, header)
        raise HistobenchError(f"{path} has no column {column!r}; {hint} (expected columns: {_LAYOUTS})")


def _complete(
    path: Path, entry: _Entry, path_column: str, label_column: str, problems: list[Problem]
) -> bool:
    origin = f"{path}:{entry.line}"
    if entry.path in _EMPTY:
        problems.append(Problem(origin, f"{label_column} {entry.label!r}, but no {path_column}"))
    elif entry.label in _EMPTY:
        problems.append(Problem(origin, f"{entry.path} has no {label_column}"))
    elif "\n" in entry.path or "\r" in entry.path:
        problems.append(Problem(origin, f"{path_column} goes over several lines; is a quote left open?"))
    else:
        return True
    return False


def _from_paths(
    path: Path,
    entries: list[_Entry],
    problems: list[Problem],
    asked: tuple[str, str],
    read: Callable[[_Entry, str], _Entry | None],
) -> list[_Entry]:
    """The entries as `read` completes them by a regular expression; a path that does not fit is a problem."""
    what, regex = asked
    found = []
    for entry in entries:
        completed = read(entry, regex)
        if completed is None:
            message = f"`{what}_regex` {regex!r} finds no {what} in {entry.path!r}"
            problems.append(Problem(f"{path}:{entry.line}", message, f"{what}s", same=f"{what} {regex}"))
        else:
            found.append(completed)
    return found


def _with_group(entry: _Entry, regex: str) -> _Entry | None:
    group = group_of(entry.path, regex)
    return None if group is None else replace(entry, group=group)


def _with_sites(entry: _Entry, regex: str) -> _Entry | None:
    found = sites_in_path(entry.path, regex)
    return None if found is None else replace(entry, sites=as_sites({**dict(entry.sites), **found}))


def _known(cell: str) -> str:
    return "" if cell in _EMPTY else cell
