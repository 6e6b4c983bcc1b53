"""Where an image comes from besides its patient: hospital, scanner, stain; any number of named columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from histobench.core.errors import HistobenchError
from histobench.roi.data.tables import CSV_COLUMNS

#: Columns that are taken by themselves; others are asked for.
SITE_COLUMNS = ("site", "scanner", "stain", "staining", "center", "centre", "hospital", "pair", "group_label")
#: Says which images show the same tissue (registered copies); a name for a match, and no place.
PAIR_COLUMN = "pair"
#: The label of the patient or slide that an image belongs to, where it is another one than the image's own.
GROUP_LABEL = "group_label"
#: Columns that come with the sites and are no places.
NO_PLACES = (PAIR_COLUMN, GROUP_LABEL)
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
    wanted = {*SITE_COLUMNS, *(name.lower() for name in asked)}
    return tuple(name for name in names if name in wanted)


def check_site_names(asked: Iterable[str]) -> None:
    """Raise if a column that means something else is asked for as a site."""
    for name in asked:
        if name.lower() in _TAKEN or not name.strip():
            raise HistobenchError(f"{name!r} cannot be a site column: the name has another meaning")


def sites_in_path(path: str, regex: str) -> dict[str, str] | None:
    """The sites that `regex` finds in a path: its named groups, else `site` is its first group or the match.

    `^` may stand for the beginning of the path or of the file's name. None where nothing is found.

    >>> sites_in_path("TUM/A_aperio-07.png", r"^(?P<hospital>[A-Z])_(?P<scanner>[a-z]+)")
    {'hospital': 'A', 'scanner': 'aperio'}
    """
    try:
        match = re.search(regex, path) or re.search(regex, re.split(r"[/\\]", path)[-1])
    except re.error as error:
        raise HistobenchError(f"`site_regex` {regex!r} is not a regular expression: {error}") from None
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
