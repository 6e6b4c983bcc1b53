"""Read datasets from CSV files, folders of classes and tar archives."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import open_plain
from histobench.core.plain_data import parse_json
from histobench.roi.data.class_map import classes_of, label_reader
from histobench.roi.data.image_ref import tar_members
from histobench.roi.data.roi_dataset import SPLITS, Problem, Reading, RoiDataset, RoiImage
from histobench.roi.data.sites import (
    PLACE_COLUMNS,
    PLACE_KEYS,
    Sites,
    TargetColumns,
    as_sites,
    check_site_names,
    sites_in_path,
    wanted_columns,
)
from histobench.roi.data.split import SPLIT_WORDS, arrange, group_of
from histobench.roi.data.tables import CSV_COLUMNS, read_text

# The names by which images are known in feature files and results.


def image_names(written: Sequence[str]) -> list[str]:
    """A name for each listed path: the file name, or the path as written when file names collide.

    One rule for the whole dataset: if any two different files share a file name, all names are paths, so
    that a name always leads back to one file.

    >>> image_names(["a/1.png", "b/2.png"])
    ['1.png', '2.png']
    >>> image_names(["a/1.png", "b/1.png", "b/2.png"])
    ['a/1.png', 'b/1.png', 'b/2.png']
    """
    # A path written on Windows keeps its backslashes in the CSV.
    names = [(PureWindowsPath(path) if "\\" in path else PurePosixPath(path)).name for path in written]
    owner: dict[str, str] = {}
    for name, path in zip(names, written, strict=True):
        if owner.setdefault(name, path) != path:
            return list(written)
    return names


_EMPTY = ("", "nan", "NaN")  # how spreadsheets and pandas fill the shorter columns
#: Kinds of problems, in the order in which those of one line are told.
_KINDS = ("row", "groups", "sites", "label")
_LAYOUTS = "train_path,train_label,val_path,val_label,test_path,test_label or image_path,label,split[,group]"


@dataclass(frozen=True)
class _Row:
    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class _Table:
    """A CSV as text: the rows that have no more cells than the header, and what is wrong so far."""

    path: Path
    header: list[str]
    rows: list[_Row]
    problems: list[Problem]

    @property
    def starts(self) -> list[str]:
        """What the columns of each split begin with; nothing where a row is one image."""
        return [f"{word}_" for word in SPLITS if f"{word}_path" in self.header] or [""]

    def require(self, column: str) -> None:
        if column not in self.header:
            if len(self.header) == 1:
                raise HistobenchError(f"{self.path} is not a CSV with the columns {_LAYOUTS}")
            hint = did_you_mean(column, self.header)
            raise HistobenchError(
                f"{self.path} has no column {column!r}; {hint} (expected columns: {_LAYOUTS})"
            )

    def report(self, line: int, message: str, kind: str = "row") -> None:
        self.problems.append(Problem(f"{self.path}:{line}", message, kind))


@dataclass(frozen=True)
class _ListedImage:
    """One listed image, still as text; without a `split` it is yet to be assigned to one."""

    origin: str
    split: str | None
    path: str
    label: str
    group: str | None = None
    sites: Sites = ()

    def placed(self, file: Path, label: int, name: str) -> tuple[str | None, RoiImage]:
        return self.split, RoiImage(file, label, name, self.origin, self.group, self.sites)


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
    target: TargetColumns | None = None,
    seed: int = 0,
) -> Reading:
    """Read every row that can be read and collect what is wrong with the others.

    Paths are absolute or relative to the CSV. Without `classes` they come from the labels. A long CSV
    without a `split` column is split by `split` shares, whole groups at a time. The usual site columns are
    taken by themselves, others by `site_columns`. With a `target` its columns are read instead of labels.
    """
    path = Path(path)
    table = _read_table(path)
    problems = table.problems
    check_site_names(site_columns)
    if target is not None:
        _add_target(table, target)
        classes, site_columns = (target.kind,), (*site_columns, *target.keys)
    _add_places(table)
    listed = list(_entries(table, splitting=split is not None, group=group_column, site_columns=site_columns))
    # What a path says goes before a column.
    completed = [_completed(entry, entry.path, problems, group_regex, site_regex) for entry in listed]
    entries = [entry for entry in completed if entry is not None]
    if target is not None:
        entries = _checked_targets(table, entries, target)
    texts = [entry.label for entry in entries]
    classes = tuple(classes) if classes is not None else classes_of(texts)
    read_label = label_reader(texts, classes)
    placed: list[tuple[str | None, RoiImage]] = []
    for entry, image_name in zip(entries, image_names([e.path for e in entries]), strict=True):
        label = _label(entry, read_label, problems)
        if label is not None:
            placed.append(entry.placed(path.parent / Path(entry.path).expanduser(), label, image_name))
    if not entries and not problems:
        raise HistobenchError(f"{path} lists no images")
    splits = arrange(placed, split, seed=seed)
    problems.sort(key=lambda problem: (int(problem.origin.rpartition(":")[2]), _KINDS.index(problem.kind)))
    return Reading(RoiDataset(name or path.stem, classes, splits), tuple(problems))


def _read_table(path: Path) -> _Table:
    """The table of a CSV; blank rows are left out."""
    text = read_text(path, what="dataset CSV")
    first = text.lstrip().splitlines()[0]
    delimiter = max(",;\t", key=first.count)
    # strict: a quote that is never closed must not swallow the rest of the file.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    table = _Table(path, [], [], [])
    header = table.header
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not header:
                header += [cell.lower() for cell in cells]
                double = next((name for name in header if name and header.count(name) > 1), None)
                if double is not None:
                    raise HistobenchError(f"{path}:{start}: the column {double!r} is there twice")
            elif any(cells[len(header) :]):
                table.report(start, f"{len(cells)} cells where the header has {len(header)}")
            else:
                padded = cells + [""] * (len(header) - len(cells))
                table.rows.append(_Row(start, dict(zip(header, padded, strict=False))))
    except csv.Error as error:
        raise HistobenchError(f"{path}:{line}: not a valid CSV row: {error}") from None
    return table


def _entries(
    table: _Table, *, splitting: bool, group: str | None, site_columns: Sequence[str]
) -> Iterator[_ListedImage]:
    """The images of a table with columns for each split, or with a row for each image."""
    path, header = table.path, table.header
    words = [word for word in SPLITS if f"{word}_path" in header or f"{word}_label" in header]
    if words:
        if splitting:
            raise HistobenchError(f"{path} says itself what is train and test; leave out `split`")
        for column in (f"{word}_{name}" for word in words for name in ("path", "label")):
            table.require(column)
        for word in words:
            for name in site_columns:
                table.require(f"{word}_{name.lower()}")
            yield from _images_of(table, f"{word}_path", word, group, site_columns)
        return
    file_column = next((column for column in CSV_COLUMNS["image_path"] if column in header), "image_path")
    asked = [name.lower() for name in (group, *site_columns) if name]
    for column in (file_column, "label", *asked):
        table.require(column)
    if splitting and "split" in header:
        raise HistobenchError(f"{path} has a split column; leave out `split`, or remove the column")
    if not splitting and "split" not in header:
        raise HistobenchError(
            f"{path} has no split column; add one (train, val or test), or give shares: `split` 0.7/0.1/0.2"
        )
    yield from _images_of(table, file_column, None, group, site_columns)


def _images_of(
    table: _Table, file_column: str, split: str | None, group: str | None, site_columns: Sequence[str]
) -> Iterator[_ListedImage]:
    """The complete images of one split's columns, or, without a `split`, of a table with a row for each."""
    start = f"{split}_" if split else ""
    label_column, group_column = f"{start}label", f"{start}{(group or 'group').lower()}"
    there = [column.removeprefix(start) for column in table.header if column.startswith(start)]
    sited = wanted_columns(there, site_columns)
    for row in table.rows:
        cells = row.cells
        file, label = cells[file_column], cells[label_column]
        word = split
        if split:
            if file in _EMPTY and label in _EMPTY:
                continue  # the columns of another split are longer
            if group:
                table.require(group_column)
        elif "split" in cells:
            word = SPLIT_WORDS.get(cells["split"].lower())
            if word is None:
                written = cells["split"]
                message = f"split {written!r} is not train, val or test" if written else "no split"
                table.report(row.line, message)
                continue
        if file in _EMPTY:
            table.report(row.line, f"{label_column} {label!r}, but no {file_column}")
        elif label in _EMPTY:
            table.report(row.line, f"{file} has no {label_column}")
        elif "\n" in file or "\r" in file:
            table.report(row.line, f"{file_column} goes over several lines; is a quote left open?")
        else:
            said = {name: cells[f"{start}{name}"] for name in sited}
            sites = as_sites({name: "" if cell in _EMPTY else cell for name, cell in said.items()})
            named = cells.get(group_column) or None
            yield _ListedImage(f"{table.path}:{row.line}", word, file, label, named, sites)


def _add_target(table: _Table, target: TargetColumns) -> None:
    """Put the target's columns among the sites, and its kind as the label of every image."""
    starts = table.starts
    for start in starts:
        for name in target.names:
            table.require(f"{start}{name}")
    for row in table.rows:
        for start in starts:
            for name, key in zip(target.names, target.keys, strict=True):
                row.cells[f"{start}{key}"] = row.cells[f"{start}{name}"]
            unused = start and row.cells[f"{start}path"] in _EMPTY
            row.cells[f"{start}label"] = "" if unused else target.kind
    added = [f"{start}{name}" for start in starts for name in (*target.keys, "label")]
    table.header.extend(name for name in added if name not in table.header)


def _add_places(table: _Table) -> None:
    """Put the coordinates of tiles among the sites, where the table has columns x and y."""
    keys = {
        f"{start}{key}": f"{start}{column}"
        for start in table.starts
        if {f"{start}x", f"{start}y"} <= set(table.header)
        for column, key in zip(PLACE_COLUMNS, PLACE_KEYS, strict=True)
        if f"{start}{column}" in table.header
    }
    for row in table.rows:
        row.cells.update({key: row.cells[name] for key, name in keys.items()})
    table.header.extend(keys)


def _checked_targets(table: _Table, entries: list[_ListedImage], target: TargetColumns) -> list[_ListedImage]:
    """The images whose target can be read, each number written in one way."""
    found, rows = [], []
    for entry in entries:
        sites = dict(entry.sites)
        try:
            row = target.row([sites[key] for key in target.keys])
        except HistobenchError as error:
            same = "target " + re.sub("'.*'", "", str(error))  # whatever the cells say
            table.problems.append(Problem(entry.origin, f"{entry.path}: {error}", "label", same))
            continue
        numbers = {key: repr(number) for key, number in zip(target.keys, row, strict=True)}
        found.append(replace(entry, sites=as_sites({**sites, **numbers})))
        rows.append(row)
    wrong = target.problem(np.array(rows).reshape(len(rows), len(target.names)))
    if wrong and len(found) == len(entries):
        table.report(1, wrong, "label")
    return found


def _completed(
    entry: _ListedImage,
    path: str,
    problems: list[Problem],
    group_regex: str | None,
    site_regex: str | None,
) -> _ListedImage | None:
    """The image with group and sites that a path says; None, and a problem, where a regex does not fit."""

    def unfit(what: str, regex: str) -> None:
        message = f"`{what}_regex` {regex!r} finds no {what} in {path!r}"
        problems.append(Problem(entry.origin, message, f"{what}s", same=f"{what} {regex}"))

    if group_regex is not None:
        group = group_of(path, group_regex)
        if group is None:
            unfit("group", group_regex)
            return None
        entry = replace(entry, group=group)
    if site_regex is not None:
        found = sites_in_path(path, site_regex)
        if found is None:
            unfit("site", site_regex)
            return None
        entry = replace(entry, sites=as_sites({**dict(entry.sites), **found}))
    return entry


def _label(entry: _ListedImage, read: Callable[[str], int], problems: list[Problem]) -> int | None:
    """The label of an image; None where it cannot be read: a problem."""
    try:
        return read(entry.label)
    except HistobenchError as error:
        problems.append(Problem(entry.origin, str(error), "label"))
        return None


# Datasets that are folders: one folder per class, with or without train/val/test above them.

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
#: What file managers leave behind, besides everything that starts with a dot.
_NOISE = frozenset({"thumbs.db", "desktop.ini", "__macosx", "ehthumbs.db", "@eadir", "icon\r"})

#: Names that a message spells out before it only counts.
_SHOWN = 4

Found = tuple[str | None, str, str]  # split, class, path relative to the dataset's folder


def scan_folder(
    path: str | Path,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    split: tuple[float, float, float] | None = None,
    group_regex: str | None = None,
    site_regex: str | None = None,
    seed: int = 0,
) -> Reading:
    """Read a folder of class folders, or of train/val/test folders of class folders.

    Class folders may have folders inside. Without `classes` the classes are the folder names, sorted.
    `split` shares divide class folders that have no train/test above them, whole groups at a time.
    """
    root = Path(path)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    found, names = _walk(root, splitting=split is not None, warnings=warnings)
    classes = tuple(classes) if classes is not None else tuple(sorted(names))
    ids = {class_name: identity for identity, class_name in enumerate(classes)}
    for class_name in sorted(set(names) - set(ids)):
        message = f"the folder is not in the class map; {did_you_mean(class_name, classes)}"
        problems.append(Problem(str(names[class_name]), message, "label"))
    placed: list[tuple[str | None, RoiImage]] = []
    for (word, class_name, file), image_name in zip(
        found, image_names([f for _, _, f in found]), strict=True
    ):
        listed = _ListedImage(str(root / file), word, file, class_name)
        entry = _completed(listed, file, problems, group_regex, site_regex)
        if entry is not None and class_name in ids:
            placed.append(entry.placed(root / file, ids[class_name], image_name))
    splits = arrange(placed, split, seed=seed)
    dataset = RoiDataset(name or root.resolve().name, classes, splits)
    return Reading(dataset, tuple(problems), tuple(warnings))


def _walk(root: Path, *, splitting: bool, warnings: list[Problem]) -> tuple[list[Found], dict[str, Path]]:
    """All images below `root`, sorted, with their split and class; and every class with a folder of it."""
    folders = _folders(root)
    if not folders:
        raise HistobenchError(f"{root} has no class folders (expected one folder of images per class)")
    for table in [entry for entry in _names_in(root) if entry.lower().endswith(".csv")]:
        message = "a CSV in a folder is not read; to use what it says, give the CSV itself"
        warnings.append(Problem(str(root / table), message))
    words = {folder: SPLIT_WORDS.get(folder.lower()) for folder in folders}
    if not any(words.values()):
        if not splitting:
            raise HistobenchError(
                f"{root} has class folders ({_some(folders)}) but no train and test folders; "
                "say how to split it: `split` 0.7/0.1/0.2, and `group_regex` '^(patient\\d+)_' if the "
                "names of files start with the patient"
            )
        return _classes_below(root, None, "", warnings)
    odd = [folder for folder, word in words.items() if word is None]
    if odd:
        raise HistobenchError(
            f"{root} mixes splits ({_some(f for f in folders if words[f])}) with others ({_some(odd)});"
            " expected either train/val/test or one folder per class"
        )
    if splitting:
        raise HistobenchError(f"{root} has {_some(folders)} folders already; leave out `split`")
    found: list[Found] = []
    names: dict[str, Path] = {}
    for folder in folders:
        images, classes = _classes_below(root / folder, words[folder], f"{folder}/", warnings)
        found += images
        names = classes | names
    return found, names


def _classes_below(
    folder: Path, split: str | None, prefix: str, warnings: list[Problem]
) -> tuple[list[Found], dict[str, Path]]:
    found: list[Found] = []
    names = _folders(folder)
    stray = [entry for entry in _names_in(folder) if _is_image(entry) and not (folder / entry).is_dir()]
    if stray:
        warnings.append(Problem(str(folder), f"outside the class folders, left out: {_some(stray)}"))
    for name in names:
        others: list[str] = []
        for parent, below, files in os.walk(folder / name):
            below[:] = sorted(entry for entry in below if not _is_noise(entry))
            inside = Path(parent).relative_to(folder).as_posix()
            for file in sorted(entry for entry in files if not _is_noise(entry)):
                if _is_image(file):
                    found.append((split, name, f"{prefix}{inside}/{file}"))
                else:
                    others.append(file)
        if others:
            warnings.append(Problem(str(folder / name), f"not images by name, left out: {_some(others)}"))
    return found, {name: folder / name for name in names}


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry for entry in os.listdir(folder) if not _is_noise(entry))
    except FileNotFoundError:
        raise HistobenchError(f"the folder {folder} does not exist") from None
    except OSError as error:
        raise HistobenchError(f"cannot read the folder {folder}: {error.strerror or error}") from error


def _folders(folder: Path) -> list[str]:
    return [entry for entry in _names_in(folder) if (folder / entry).is_dir()]


def _is_noise(name: str) -> bool:
    return name.startswith(".") or name.lower() in _NOISE


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


# Datasets in TAR shards of the WebDataset layout: `key.jpg` beside `key.cls` or `key.json`.

_LABEL_KEYS = ("label", "cls", "class")


def shards_in(folder: Path) -> list[Path]:
    """The TAR files of a folder, or of its train/val/test folders, sorted."""
    below = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and SPLIT_WORDS.get(entry.name.lower()) is not None
    ]
    return sorted(path for place in (folder, *below) for path in place.glob("*.tar") if path.is_file())


def scan_tar(
    source: str | Path,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    split: tuple[float, float, float] | None = None,
    group_regex: str | None = None,
    site_regex: str | None = None,
    site_columns: Sequence[str] = (),
    seed: int = 0,
) -> Reading:
    """Read one shard, or a folder of shards whose names or folders begin with train, val or test.

    The label is the text of `key.cls`, or `label` in `key.json`, which may also hold a `group` and sites.
    """
    source = Path(source)
    shards = shards_in(source) if source.is_dir() else [source]
    problems: list[Problem] = []
    check_site_names(site_columns)
    samples = [sample for shard in shards for sample in _samples(shard, problems, site_columns)]
    if split is None:
        unplaced = next((Path(sample.path).parent for sample in samples if sample.split is None), None)
        if unplaced is not None:
            raise HistobenchError(
                f"{unplaced}: the name does not begin with train, val or test; give `split` 0.7/0.1/0.2"
            )
    if not samples and not problems:
        raise HistobenchError(f"{source} holds no images with labels (expected key.jpg beside key.cls)")
    texts = [sample.label for sample in samples]
    classes = tuple(classes) if classes is not None else classes_of(texts)
    read_label = label_reader(texts, classes)
    base = source if source.is_dir() else source.parent
    known_as = image_names([Path(sample.path).relative_to(base).as_posix() for sample in samples])
    placed: list[tuple[str | None, RoiImage]] = []
    for sample, image_name in zip(samples, known_as, strict=True):
        entry = _completed(sample, image_name, problems, group_regex, site_regex)
        label = None if entry is None else _label(entry, read_label, problems)
        if entry is not None and label is not None:
            placed.append(entry.placed(Path(entry.path), label, image_name))
    dataset = RoiDataset(name or source.stem, classes, arrange(placed, split, seed=seed))
    return Reading(dataset, tuple(problems))


def _samples(shard: Path, problems: list[Problem], site_columns: Sequence[str]) -> list[_ListedImage]:
    members = tar_members(str(shard))
    by_key: dict[str, dict[str, str]] = defaultdict(dict)
    for member in members:
        # As WebDataset has it: the key ends at the first dot of the file name.
        match = re.fullmatch(r"((?:.*/)?[^/]+?)\.([^/]*)", member)
        if match and not match[1].rpartition("/")[2].startswith("."):
            by_key[match[1]][f".{match[2].lower()}"] = member
    samples = []
    with open_plain(shard) as handle:

        def text_of(member: str) -> str:
            offset, size = members[member]
            handle.seek(offset)
            return handle.read(size).decode("utf-8-sig", "replace").strip()

        for parts in by_key.values():
            image = next((parts[suffix] for suffix in IMAGE_SUFFIXES if suffix in parts), None)
            if image is None:
                continue
            origin = str(shard / image)
            about = _about(text_of(parts[".json"])) if ".json" in parts else {}
            written = [str(about[key]) for key in _LABEL_KEYS if key in about]
            label = text_of(parts[".cls"]) if ".cls" in parts else next(iter(written), "")
            if not label:
                problems.append(Problem(origin, "no label (expected .cls, or .json with 'label')"))
                continue
            group = str(about["group"]) if about.get("group") not in (None, "") else None
            said = {str(key).lower(): value for key, value in about.items()}
            named = wanted_columns(said, site_columns)
            sites = as_sites({name: "" if said[name] is None else str(said[name]) for name in named})
            samples.append(_ListedImage(origin, _split_of(shard), origin, label, group, sites))
    return samples


def _about(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _split_of(shard: Path) -> str | None:
    word = re.match(r"[a-z]*", shard.name.lower())
    return SPLIT_WORDS.get(word[0] if word else "") or SPLIT_WORDS.get(shard.parent.name.lower())
