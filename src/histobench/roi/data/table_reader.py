"""Read a table of images, a CSV file or a DataFrame, into typed columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.records import record
from histobench.roi.data.class_map import classes_of, label_reader
from histobench.roi.data.image_table import ImageColumns, ImageTable, RoiImage
from histobench.roi.data.roi_dataset import SPLITS, Problem, Reading, RoiDataset
from histobench.roi.data.sites import Place, check_site_names, place_columns, sites_in_path, wanted_columns
from histobench.roi.data.split import SPLIT_WORDS, group_of, parse_fractions, regex_for, split_images
from histobench.roi.data.tables import COLUMNS, Sheet
from histobench.roi.data.targets import TargetColumns
from histobench.roi.options import Origin
from histobench.roi.task_catalogue import MASK

_EMPTY = ("", "nan", "NaN")  # how spreadsheets and pandas fill the shorter columns
_KINDS = ("row", "groups", "sites", "label")


@record
class Wanted(Origin):
    """What the caller asks of a dataset's files, whatever their kind."""

    classes: Sequence[str] | None = None
    name: str | None = None
    seed: int = 0


@dataclass
class Collected:
    """Rows as they are read, and what is wrong with others; `reading` makes the dataset of them."""

    columns: ImageColumns
    wanted: Wanted
    target: TargetColumns | None = None
    problems: list[tuple[int, Problem]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def report(self, line: int, message: str, kind: str = "row", same: str = "", origin: str = "") -> None:
        place = origin or (self.columns.origin(line) if self.columns.origin else "")
        self.problems.append((line, Problem(place, message, kind, same)))

    def add(
        self,
        line: int,
        split: str | None,
        path: str,
        label: str,
        group: str | None,
        sites: Mapping[str, str],
        **more: Any,
    ) -> None:
        """Add an image; what its path says about group and sites goes before the columns."""
        if self.wanted.group_regex is not None:
            group = group_of(path, self.wanted.group_regex)
        if self.wanted.site_regex is not None:
            found = sites_in_path(path, self.wanted.site_regex)
            if found is None:
                regex = self.wanted.site_regex
                message = f"`site_regex` {regex!r} finds no site in {path!r}"
                self.report(line, message, "sites", f"site {regex}", "" if self.columns.origin else path)
                return
            sites = {**sites, **found}
        number = SPLITS.index(split) if split is not None else -1
        self.columns.add(line, number, path, label, group, sites, **more)

    def reading(self, name: str, *, column: str = "label") -> Reading:
        """The dataset, with what is wrong beside it."""
        columns, wanted = self.columns, self.wanted
        self._check_groups()
        texts = columns.label_texts
        if wanted.classes is not None:
            classes = tuple(wanted.classes)
        else:
            classes = classes_of(texts.names, column=column, count=len(texts))
        read = label_reader(texts.names, classes)
        ids = np.full(len(texts.names), -1, dtype=np.int32)
        for code, text in enumerate(texts.names):
            try:
                ids[code] = read(text)
            except HistobenchError as error:
                for row in np.flatnonzero(texts.codes == code).tolist():
                    self.report(columns.lines[row], str(error), "label", origin=columns.row_origin(row))
        columns.labels = ids[texts.codes] if len(texts) else ids
        columns.by_path = columns.same_names()
        kept = columns.labels >= 0
        self._drop_repeated(kept, classes)
        self._check_target(kept)
        rows = np.flatnonzero(kept).astype(np.int32)
        splits = np.frombuffer(columns.splits, dtype=np.int8) if len(columns) else np.zeros(0, np.int8)
        found: Mapping[str, Sequence[RoiImage]]
        if wanted.split is not None:
            found = split_images(ImageTable(columns, rows), parse_fractions(wanted.split), seed=wanted.seed)
        else:
            parts = {word: rows[splits[rows] == place] for place, word in enumerate(SPLITS)}
            found = {word: ImageTable(columns, part) for word, part in parts.items() if len(part)}
        problems = sorted(self.problems, key=lambda item: (item[0], _KINDS.index(item[1].kind)))
        dataset = RoiDataset(wanted.name or name, classes, found, self.target, tuple(self.notes))
        return Reading(dataset, tuple(problem for _, problem in problems), tuple(self.warnings))

    def _check_groups(self) -> None:
        """Refuse an expression that does not fit every path, with examples of what it finds."""
        regex, written, groups = self.wanted.group_regex, self.columns.written, self.columns.groups
        without = [row for row in range(len(written)) if not groups[row]] if regex else []
        if not without:
            return
        examples = [f"{written[row]!r}: nothing" for row in without[:3]]
        fit = next((row for row in range(len(written)) if groups[row]), None)
        if fit is not None:
            examples = [*examples[:2], f"{written[fit]!r}: {groups[fit]!r}"]
        other = regex_for(["/".join(path.split("/")[-2:]) for path in written])
        raise HistobenchError(
            f"`group_regex` '{regex}' finds no group in {len(without):,} of {len(written):,} paths. What it "
            f"finds: {'; '.join(examples)}" + (f". Did you mean '{other}'?" if other else "")
        )

    def _drop_repeated(
        self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]], classes: Sequence[str]
    ) -> None:
        """Count an image once that is listed twice; two labels are an error that names both rows."""
        columns = self.columns
        dropped, first_again = 0, ""
        for same in columns.repeated():
            rows = [row for row in same if kept[row]]
            for place, row in enumerate(rows[1:], start=1):
                other = next(
                    (one for one in rows[:place] if columns.labels[one] != columns.labels[row]), None
                )
                if other is not None:
                    one, two = (classes[columns.labels[each]] for each in (row, other))
                    message = (
                        f"{columns.written[row]} is labeled {one} here and {two} at "
                        f"{columns.row_origin(other)}; keep one of the rows"
                    )
                    self.report(columns.lines[row], message, "label", "two labels", columns.row_origin(row))
                elif any(columns.splits[one] == columns.splits[row] for one in rows[:place]):
                    dropped += 1
                    first_again = first_again or columns.row_origin(row)
                    kept[row] = False
        if dropped:
            what = "row lists" if dropped == 1 else "rows list"
            message = f"{dropped:,} {what} an image again; each image counts once"
            self.warnings.append(Problem(first_again, message))

    def _check_target(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        if (
            self.target is None
            or not self.target.width
            or any(problem.kind == "label" for _, problem in self.problems)
        ):
            return
        values = np.frombuffer(self.columns.target, dtype=np.float64).reshape(-1, self.columns.width)
        wrong = self.target.problem(values[kept])
        if wrong:
            self.report(1, wrong, "label")


@dataclass(frozen=True)
class _Roles:
    """Which columns of a table, or of one split of a wide table, hold what."""

    split_word: str | None
    image: str
    label: str | None
    split: str | None
    group: str | None
    sites: tuple[tuple[str, str], ...]  # (site, column)
    target: tuple[str, ...]
    places: tuple[tuple[str, str], ...]  # (field of a place, column)

    @property
    def names(self) -> tuple[str, ...]:
        one = (name or "" for name in (self.image, self.label, self.split, self.group))
        sites, places = ((name for _, name in pairs) for pairs in (self.sites, self.places))
        return (*one, *sites, *self.target, *places)


def read_table(sheet: Sheet, wanted: Wanted, name: str, target: TargetColumns | None = None) -> Reading:
    """Read every row that can be read and collect what is wrong with the others."""
    check_site_names(wanted.site_columns)
    base = Path(wanted.root).expanduser() if wanted.root else sheet.base
    rows = ImageColumns(base, sheet.origin, width=target.width if target else 0)
    found = Collected(rows, wanted if target is None else replace(wanted, classes=(target.kind,)), target)
    roles = _roles(sheet, wanted, target)
    found.notes.append(_described(sheet, roles[0]))
    used = list(dict.fromkeys(name for role in roles for name in role.names if name))
    places = [[used.index(name) if name else -1 for name in role.names] for role in roles]
    for line, cells in sheet.rows(used):
        if cells is None:
            found.report(line, f"more cells than the header has ({len(sheet.header)})")
            continue
        for role, where in zip(roles, places, strict=True):
            _add_row(found, role, line, [cells[place] if place >= 0 else "" for place in where])
    if not len(rows) and not found.problems:
        raise HistobenchError(f"{sheet.called} lists no images")
    return found.reading(name, column=roles[0].label or "label")


def _add_row(found: Collected, role: _Roles, line: int, cells: Sequence[str]) -> None:
    path, label, split, group = cells[:4]
    word, target = role.split_word, found.target
    if word is not None and path in _EMPTY and label in _EMPTY:
        return  # the columns of another split are longer
    if role.group is None and (lacking := found.wanted.group_column):
        found.report(line, f"there is no column '{word}_{lacking.lower()}'", same="no group column")
        return
    if role.split is not None:
        word = SPLIT_WORDS.get(split.lower())
        if word is None:
            found.report(line, f"split {split!r} is not train, val or test" if split else "no split")
            return
    if path in _EMPTY:
        found.report(line, f"no {role.image}", same="no path")
        return
    if role.label is not None and label in _EMPTY:
        found.report(line, f"{path} has no {role.label}")
        return
    if "\n" in path or "\r" in path:
        found.report(line, f"{role.image} goes over several lines; is a quote left open?")
        return
    sited, end = 4 + len(role.sites), 4 + len(role.sites) + len(role.target)
    sites = {
        name: "" if cell in _EMPTY else cell
        for (name, _), cell in zip(role.sites, cells[4:sited], strict=True)
    }
    values: Sequence[float] = ()
    mask = ""
    if target is not None and target.kind == MASK:
        label, mask = target.kind, cells[sited]
        if mask in _EMPTY:
            found.report(line, f"{path}: no {target.names[0]}", "label", "no mask")
            return
    elif target is not None:
        label = target.kind
        try:
            values = target.row(cells[sited:end])
        except HistobenchError as error:
            same = "target " + re.sub("'.*'", "", str(error))  # whatever the cells say
            found.report(line, f"{path}: {error}", "label", same)
            return
    place = None
    if role.places:
        known = zip((name for name, _ in role.places), cells[end:], strict=True)
        place = Place.read({name: cell for name, cell in known if cell not in _EMPTY})
    group_or_none = None if group in _EMPTY else group
    found.add(line, word, path, label, group_or_none, sites, target=values, place=place, mask=mask)


def _roles(sheet: Sheet, wanted: Wanted, target: TargetColumns | None) -> list[_Roles]:
    """The columns of a table with columns for each split, or with a row for each image."""
    header = sheet.header
    words = [word for word in SPLITS if f"{word}_path" in header or f"{word}_label" in header]
    if not words or wanted.image_column is not None:
        role = _role(sheet, wanted, target, None)
        if wanted.split is not None and role.split is not None:
            raise HistobenchError(
                f"{sheet.called} has a split column; leave out `split`, or remove the column"
            )
        return [role]
    if wanted.split is not None:
        raise HistobenchError(
            f"{sheet.called} already says which images are train and test; leave out `split`"
        )
    return [_role(sheet, wanted, target, word) for word in words]


def _role(sheet: Sheet, wanted: Wanted, target: TargetColumns | None, word: str | None) -> _Roles:
    start, header = f"{word}_" if word else "", sheet.header
    asked = {kind: getattr(wanted, f"{kind}_column") for kind in COLUMNS}
    usual = {**COLUMNS, "image": ("path",)} if word else COLUMNS
    names = {
        kind: [f"{start}{name}" for name in ((own.lower(),) if own else usual[kind])]
        for kind, own in asked.items()
    }
    found = {kind: next((name for name in names[kind] if name in header), None) for kind in COLUMNS}
    needed = {"image", "label"} - ({"label"} if target else set())
    if word:
        found["split"] = None
    else:
        needed |= {kind for kind, own in asked.items() if own} | ({"split"} if not wanted.split else set())
    lacking = [kind for kind in COLUMNS if kind in needed and found[kind] is None]
    if lacking == ["split"] and not wanted.split_column:
        raise HistobenchError(
            f"{sheet.called} has no split column; add one (train, val or test), name it with `split_column`, "
            "or give shares: `split` 0.7/0.1/0.2"
        )
    if lacking:
        option = "" if asked[lacking[0]] else f"{lacking[0]}_column"
        raise _missing(sheet, names[lacking[0]], option, {kind: names[kind][0] for kind in lacking[1:]})
    for name in (*wanted.site_columns, *(target.names if target else ())):
        if f"{start}{name.lower()}" not in header:
            raise _missing(sheet, [f"{start}{name.lower()}"], "", {})
    there = [name.removeprefix(start) for name in header if name.startswith(start)]
    sites = [name for name in wanted_columns(there, wanted.site_columns) if name not in asked.values()]
    return _Roles(
        word,
        found["image"] or "",
        None if target else found["label"],
        found["split"],
        found["group"],
        tuple((name, f"{start}{name}") for name in sites),
        tuple(f"{start}{name}" for name in target.names) if target else (),
        tuple((name, f"{start}{name}") for name in place_columns(there)),
    )


def _missing(sheet: Sheet, names: Sequence[str], option: str, also: Mapping[str, str]) -> HistobenchError:
    """The error of a column that a table lacks under all its names; `also`: others that it lacks."""
    shown = ", ".join(name for name in sheet.header[:12] if name)
    shown += f", ... ({len(sheet.header)} in all)" if len(sheet.header) > 12 else ""
    has = f"it has: {shown}" if shown else "it has no columns"
    near = did_you_mean(names[0], sheet.header)
    near = f"; {near}" if near.startswith("did you mean") else ""
    nor = f" (nor {', '.join(names[1:])})" if names[1:] else ""
    nor += "".join(f", no {name!r}" for name in also.values())
    others = "".join(f" and `{kind}_column`" for kind in also)
    advice = f"; name {'them' if others else 'it'} with `{option}`{others}" if option else ""
    return HistobenchError(f"{sheet.called} has no column {names[0]!r}{nor}; {has}{near}{advice}")


def _described(sheet: Sheet, role: _Roles) -> str:
    """Which columns were taken for what, in one line."""
    parts = [f"images from {role.image!r}"]
    parts += [
        f"{what} from {name!r}" for what, name in (("labels", role.label), ("splits", role.split)) if name
    ]
    parts += [f"target from {', '.join(map(repr, role.target))}"] if role.target else []
    parts += [f"patients or slides (groups) from {role.group!r}" if role.group else "no column with groups"]
    return f"{Path(sheet.called).name}: " + ", ".join(parts)
