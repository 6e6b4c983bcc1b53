"""The class map (name to label id), and how labels are read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.data.tables import read_text

#: How a line may pair a name with an id, the documented forms first.
_FORMS = {
    "Name,ID": re.compile(r"(?P<name>.*\S)\s*,\s*(?P<id>\d+)(?:\.0+)?"),
    "ID:Name": re.compile(r"(?P<id>\d+)\s*:\s*(?P<name>\S.*)"),
    "ID,Name": re.compile(r"(?P<id>\d+)\s*,\s*(?P<name>\S.*)"),
    "Name:ID": re.compile(r"(?P<name>.*\S)\s*:\s*(?P<id>\d+)"),
}
_HEADER = re.compile(r"(class|name|class[ _]?name|label)s?\s*[,:]\s*(id|label|class[ _]?id|index)", re.I)

Lines = list[tuple[int, str]]  # line number, text


def read_class_map(path: str | Path) -> tuple[str, ...]:
    """The class names in the order of their ids, from `Name,ID` lines, `ID:Name` lines or plain names.

    A name may contain commas and colons: in `Name,ID` the last comma counts, in `ID:Name` the first colon.
    """
    path = Path(path)
    lines = _content(read_text(path, what="class map"))
    form = _form_of(lines)
    named = _parse(path, lines, form) if form else [(line, i, name) for i, (line, name) in enumerate(lines)]
    first_line: dict[object, int] = {}
    for line, identity, name in named:
        if first_line.setdefault(name, line) != line:
            raise HistobenchError(f"{path}:{line}: class {name!r} is already on line {first_line[name]}")
        if first_line.setdefault(identity, line) != line:
            raise HistobenchError(
                f"{path}:{line}: class {name!r} has the id of line {first_line[identity]}, {identity}"
            )
    missing = sorted(set(range(len(named))) - {identity for _, identity, _ in named})
    if missing:
        raise HistobenchError(f"{path}: ids must be consecutive from 0, but {missing[0]} is missing")
    return tuple(name for _, _, name in sorted(named, key=lambda entry: entry[1]))


def _content(text: str) -> Lines:
    # Not str.splitlines: it also breaks at rarer signs that may stand inside a name.
    lines = [(number, line.strip()) for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1)]
    lines = [(number, line) for number, line in lines if line]
    return lines[1:] if len(lines) > 1 and _HEADER.fullmatch(lines[0][1]) else lines


def _form_of(lines: Lines) -> str | None:
    """The form that most lines have, so that one slip is an error and not a class called 'TUM,2a'."""
    matches = {form: [p.fullmatch(line) for _, line in lines] for form, p in _FORMS.items()}
    for form, found in matches.items():
        if sorted(int(match["id"]) for match in found if match) == list(range(len(lines))):
            return form
    form, found = max(matches.items(), key=lambda item: sum(map(bool, item[1])))
    return form if 2 * sum(map(bool, found)) >= len(lines) else None


def _parse(path: Path, lines: Lines, form: str) -> list[tuple[int, int, str]]:
    named = []
    for number, line in lines:
        match = _FORMS[form].fullmatch(line)
        if not match:
            raise HistobenchError(f"{path}:{number}: expected '{form}' as on the other lines, found {line!r}")
        named.append((number, int(match["id"]), match["name"]))
    return named


log = logging.getLogger(__name__)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,2})?")
_LARGEST_ID = 9_999
#: A column with more different numbers than this may be a measurement.
_MOST_NUMBERS = 20


def label_id(text: str) -> int | None:
    """The id in a label's text, or None when the text is not a whole number."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return int(number) if number.is_integer() else None


def is_fraction(text: str) -> bool:
    """Whether a label's text is a number, but no whole one."""
    return _NUMBER.fullmatch(text) is not None and label_id(text) is None


def classes_of(texts: Sequence[str], *, column: str = "label", count: int | None = None) -> tuple[str, ...]:
    """The classes without a class map: sorted names, or the ids up to the largest; of `count` labels."""
    _check_categories(texts, column, len(texts) if count is None else count)
    found = [label_id(text) for text in texts]
    ids = [identity for identity in found if identity is not None]
    if not ids or len(ids) < len(texts):
        names = tuple(sorted(set(texts)))
        if any(map(is_fraction, names)):
            some = ", ".join(name for name in names if is_fraction(name))[:60]
            log.warning("labels that are not whole numbers (%s) are taken as class names", some)
        return names
    if max(ids) > _LARGEST_ID:
        raise HistobenchError(f"label {max(ids)} is too large for a class id; give a class map (`classes`)")
    return tuple(str(identity) for identity in range(max(ids) + 1))


def _check_categories(texts: Sequence[str], column: str, count: int) -> None:
    """Refuse measured values: many different fractions, or whole numbers most of which occur once."""
    values = set(texts)
    if len(values) <= _MOST_NUMBERS or not all(map(_NUMBER.fullmatch, values)):
        return
    if sum(map(is_fraction, values)) > _MOST_NUMBERS or 2 * len(values) > count:
        some = ", ".join(sorted(values, key=float)[:3])
        raise HistobenchError(
            f"the column {column!r} looks continuous: {len(values):,} different numbers in {count:,} "
            f"entries ({some}, ...); give `target` regression, or divide the values into classes first"
        )


def label_reader(texts: Sequence[str], classes: Sequence[str]) -> Callable[[str], int]:
    """A function from a label's text to its id; it raises for a label outside the class map.

    A whole number is an id, unless the labels cannot be ids but are all names ("3", "4", "5" for grades).
    """
    ids = {name: identity for identity, name in enumerate(classes)}
    known = range(len(classes))
    by_name = all(text in ids for text in texts) and any(label_id(text) not in known for text in texts)

    def read(text: str) -> int:
        identity = None if by_name else label_id(text)
        if identity is not None and identity in known:
            return identity
        if text in ids:
            return ids[text]
        if identity is not None:
            raise HistobenchError(f"label {text} is outside the class map (ids 0 to {len(classes) - 1})")
        raise HistobenchError(f"label {text!r} is not in the class map; {did_you_mean(text, classes)}")

    return read


def one_label_each(owners: Iterable[str], labels: Iterable[int], classes: Sequence[str]) -> dict[str, int]:
    """The label of every patient, in their order, from patient and label of each image; two are an error."""
    first: dict[str, int] = {}
    two: dict[str, int] = {}
    for owner, label in zip(owners, labels, strict=True):
        if first.setdefault(owner, label) != label:
            two.setdefault(owner, label)
    if two:
        owner, other = next(iter(two.items()))
        more = f" (and {len(two) - 1:,} more patients like it)" if len(two) > 1 else ""
        raise HistobenchError(
            f"patient {owner} has two labels, {classes[first[owner]]} and {classes[other]}{more}: a patient "
            "needs one label; give it for every image in a column 'group_label'"
        )
    return first
