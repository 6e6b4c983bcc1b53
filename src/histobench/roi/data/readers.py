"""Read datasets from CSV files, folders of classes and tar archives."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    owner: dict[str, str] = {}
    names = [_file_name(path) for path in written]
    for name, path in zip(names, written, strict=True):
        if owner.setdefault(name, path) != path:
            return list(written)
    return names


def _file_name(path: str) -> str:
    # A path written on Windows keeps its backslashes in the CSV.
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name


_EMPTY = ("", "nan", "NaN")  # how spreadsheets and pandas fill the shorter columns
_LAYOUTS = "train_path,train_label,val_path,val_label,test_path,test_label or image_path,label,split[,group]"


@dataclass(frozen=True)
class _Row:
    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True)
class _ListedImage:
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
    target: TargetColumns | None = None,
    seed: int = 0,
) -> Reading:
    """Read every row that can be read and collect what is wrong with the others.

    Paths are absolute or relative to the CSV. Without `classes` they come from the labels. A long CSV
    without a `split` column is split by `split` shares, whole groups at a time. The usual site columns are
    taken by themselves, others by `site_columns`. With a `target` its columns are read instead of labels.
    """
    path = Path(path)
    problems: list[Problem] = []
    header, rows = _table(path, problems)
    check_site_names(site_columns)
    if target is not None:
        header, rows = _with_target(path, header, rows, target)
        classes, site_columns = (target.kind,), (*site_columns, *target.keys)
    header, rows = _with_places(header, rows)
    entries = _entries(
        path, header, rows, problems, split=split, group_column=group_column, site_columns=site_columns
    )
    # What a path says goes before a column.
    if group_regex is not None:
        entries = _from_paths(path, entries, problems, ("group", group_regex), _with_group)
    if site_regex is not None:
        entries = _from_paths(path, entries, problems, ("site", site_regex), _with_sites)
    if target is not None:
        entries = _checked_targets(path, entries, problems, target)
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
) -> list[_ListedImage]:
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
) -> list[_ListedImage]:
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
            entry = _ListedImage(row.line, word, file, label, group, sites)
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
) -> list[_ListedImage]:
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
        entry = _ListedImage(row.line, split, row.cells[file_column], row.cells["label"], group, sites)
        if not splitting and split is None:
            word = row.cells["split"]
            message = f"split {word!r} is not train, val or test" if word else "no split"
            problems.append(Problem(f"{path}:{row.line}", message))
        elif _complete(path, entry, file_column, "label", problems):
            entries.append(entry)
    return entries


def _with_target(
    path: Path, header: Sequence[str], rows: Sequence[_Row], target: TargetColumns
) -> tuple[list[str], list[_Row]]:
    """The table with the target's columns among the sites, and its kind as the label of every image."""
    starts = [f"{word}_" for word in SPLITS if f"{word}_path" in header] or [""]
    for start in starts:
        for name in target.names:
            _require(path, f"{start}{name}", header)

    def completed(row: _Row) -> _Row:
        cells = dict(row.cells)
        for start in starts:
            unused = start and cells[f"{start}path"] in _EMPTY
            found = {
                f"{start}{key}": cells[f"{start}{name}"]
                for name, key in zip(target.names, target.keys, strict=True)
            }
            cells |= {**found, f"{start}label": "" if unused else target.kind}
        return _Row(row.line, cells)

    added = [f"{start}{name}" for start in starts for name in (*target.keys, "label")]
    return list(dict.fromkeys([*header, *added])), [completed(row) for row in rows]


def _with_places(header: list[str], rows: list[_Row]) -> tuple[list[str], list[_Row]]:
    """The table with the coordinates of tiles among the sites, where it has columns x and y."""
    starts = [f"{word}_" for word in SPLITS if f"{word}_path" in header] or [""]
    keys = {
        f"{start}{key}": f"{start}{column}"
        for start in starts
        if {f"{start}x", f"{start}y"} <= set(header)
        for column, key in zip(PLACE_COLUMNS, PLACE_KEYS, strict=True)
        if f"{start}{column}" in header
    }
    if not keys:
        return header, rows
    added = [
        _Row(row.line, {**row.cells, **{key: row.cells[name] for key, name in keys.items()}}) for row in rows
    ]
    return [*header, *keys], added


def _checked_targets(
    path: Path, entries: list[_ListedImage], problems: list[Problem], target: TargetColumns
) -> list[_ListedImage]:
    """The images whose target can be read, each number written in one way."""
    found, rows = [], []
    for entry in entries:
        sites = dict(entry.sites)
        try:
            row = target.row([sites[key] for key in target.keys])
        except HistobenchError as error:
            same = "target " + re.sub("'.*'", "", str(error))  # whatever the cells say
            problems.append(Problem(f"{path}:{entry.line}", f"{entry.path}: {error}", "label", same=same))
            continue
        numbers = {key: repr(number) for key, number in zip(target.keys, row, strict=True)}
        found.append(replace(entry, sites=as_sites({**sites, **numbers})))
        rows.append(row)
    wrong = target.problem(np.array(rows).reshape(len(rows), len(target.names)))
    if wrong and len(found) == len(entries):
        problems.append(Problem(f"{path}:1", wrong, "label"))
    return found


def _require(path: Path, column: str, header: Sequence[str]) -> None:
    if column not in header:
        if len(header) == 1:
            raise HistobenchError(f"{path} is not a CSV with the columns {_LAYOUTS}")
        hint = did_you_mean(column, header)
        raise HistobenchError(f"{path} has no column {column!r}; {hint} (expected columns: {_LAYOUTS})")


def _complete(
    path: Path, entry: _ListedImage, path_column: str, label_column: str, problems: list[Problem]
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
    entries: list[_ListedImage],
    problems: list[Problem],
    asked: tuple[str, str],
    read: Callable[[_ListedImage, str], _ListedImage | None],
) -> list[_ListedImage]:
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


def _with_group(entry: _ListedImage, regex: str) -> _ListedImage | None:
    group = group_of(entry.path, regex)
    return None if group is None else replace(entry, group=group)


def _with_sites(entry: _ListedImage, regex: str) -> _ListedImage | None:
    found = sites_in_path(entry.path, regex)
    return None if found is None else replace(entry, sites=as_sites({**dict(entry.sites), **found}))


def _known(cell: str) -> str:
    return "" if cell in _EMPTY else cell


# Datasets that are folders: one folder per class, with or without train/val/test above them.

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
#: What file managers leave behind, besides everything that starts with a dot.
_NOISE = frozenset({"thumbs.db", "desktop.ini", "__macosx", "ehthumbs.db", "@eadir", "icon\r"})

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
        group = None if group_regex is None else group_of(file, group_regex)
        sites = {} if site_regex is None else sites_in_path(file, site_regex)
        origin = str(root / file)
        if group_regex is not None and group is None:
            message = f"`group_regex` {group_regex!r} finds no group in {file!r}"
            problems.append(Problem(origin, message, "groups", same=f"group {group_regex}"))
        elif sites is None:
            message = f"`site_regex` {site_regex!r} finds no site in {file!r}"
            problems.append(Problem(origin, message, "sites", same=f"site {site_regex}"))
        elif class_name in ids:
            label = ids[class_name]
            placed.append((word, RoiImage(root / file, label, image_name, origin, group, as_sites(sites))))
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


def _some(names: Iterable[str], *, shown: int = 4) -> str:
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


# Datasets in TAR shards of the WebDataset layout: `key.jpg` beside `key.cls` or `key.json`.

_LABEL_KEYS = ("label", "cls", "class")


@dataclass(frozen=True)
class _Sample:
    """One listed image, still as text."""

    path: Path  # shard.tar/member
    split: str | None
    label: str
    group: str | None
    sites: Sites


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
        unplaced = next((sample.path.parent for sample in samples if sample.split is None), None)
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
    known_as = image_names([sample.path.relative_to(base).as_posix() for sample in samples])
    placed: list[tuple[str | None, RoiImage]] = []
    for sample, image_name in zip(samples, known_as, strict=True):
        origin = str(sample.path)
        group = sample.group if group_regex is None else group_of(image_name, group_regex)
        if group_regex is not None and group is None:
            message = f"`group_regex` {group_regex!r} finds no group in {image_name!r}"
            problems.append(Problem(origin, message, "groups", same=f"group {group_regex}"))
            continue
        found = {} if site_regex is None else sites_in_path(image_name, site_regex)
        if found is None:
            message = f"`site_regex` {site_regex!r} finds no site in {image_name!r}"
            problems.append(Problem(origin, message, "sites", same=f"site {site_regex}"))
            continue
        try:
            label = read_label(sample.label)
        except HistobenchError as error:
            problems.append(Problem(origin, str(error), "label"))
            continue
        sites = as_sites({**dict(sample.sites), **found})
        placed.append((sample.split, RoiImage(sample.path, label, image_name, origin, group, sites)))
    dataset = RoiDataset(name or source.stem, classes, arrange(placed, split, seed=seed))
    return Reading(dataset, tuple(problems))


def _samples(shard: Path, problems: list[Problem], site_columns: Sequence[str]) -> list[_Sample]:
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
            origin = shard / image
            about = _about(text_of(parts[".json"])) if ".json" in parts else {}
            written = [str(about[key]) for key in _LABEL_KEYS if key in about]
            label = text_of(parts[".cls"]) if ".cls" in parts else next(iter(written), "")
            if not label:
                problems.append(Problem(str(origin), "no label (expected .cls, or .json with 'label')"))
                continue
            group = str(about["group"]) if about.get("group") not in (None, "") else None
            said = {str(key).lower(): value for key, value in about.items()}
            named = wanted_columns(said, site_columns)
            sites = as_sites({name: "" if said[name] is None else str(said[name]) for name in named})
            samples.append(_Sample(origin, _split_of(shard), label, group, sites))
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
