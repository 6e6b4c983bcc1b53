"""Text from elsewhere made safe: file names, natural order, terminal output, Python syntax."""

from __future__ import annotations

import ast
import csv
import io
import re
import threading
from collections.abc import Iterable
from typing import Any

from histobench.core.errors import HistobenchError

#: A file system takes 255 bytes; the rest is for what is put around the name.
_LONGEST = 150


def check_plain_name(name: str, *, what: str) -> str:
    """The name, if a folder can be called so and lies where it was put; `what` begins the error.

    >>> check_plain_name("CRC-100K", what="dataset")
    'CRC-100K'
    """
    sound = re.fullmatch(r"[^/\\\x00-\x1f\x7f]*[^/\\\x00-\x1f\x7f. ]", name)
    if sound is None or len(name.encode("utf-8", "surrogatepass")) > _LONGEST:
        raise HistobenchError(
            f"{what} {name[:60]!r} cannot be the name of a folder; give one without slashes and control "
            f"characters, of at most {_LONGEST} bytes, that does not end in a dot or a space"
        )
    return name


def count_of(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count_of(1, "task"), count_of(2, "class"), count_of(1200, "image"), count_of(2, "entry")
    ('1 task', '2 classes', '1,200 images', '2 entries')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(text: str) -> list[str]:
    """The items of a comma-separated list.

    >>> listed("uni_v1, virchow2,")
    ['uni_v1', 'virchow2']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def natural_order(text: object) -> list[str | int]:
    """A key to sort by.

    >>> sorted(["10way", "2way", "", "all"], key=natural_order)
    ['', '2way', '10way', 'all']
    """
    # Words and numbers take turns in what the expression gives, so that like is compared with like.
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", str(text)))]


_SPACES = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")
#: Signs that mean something in Markdown wherever they stand, or where they begin a tag, link or emphasis.
_MARKDOWN = re.compile(r"[\\`*|]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[:])|(?<!\w)_|_(?!\w)|~(?=~)")


def spreadsheet_cell(value: object) -> object:
    """The value as a cell that no spreadsheet takes for a formula; numbers stay numbers.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-0.5), spreadsheet_cell("uni_v1")
    ("'=1+1", -0.5, 'uni_v1')
    """
    if isinstance(value, str) and value.lstrip(" \ufeff")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n"):
        return f"'{value}"
    return value


def markdown_text(text: str) -> str:
    r"""The text as itself in Markdown, on one line: no tag, link, image, emphasis or table cell comes of it.

    >>> markdown_text("uni_v1"), markdown_text("[a](http://x) | <b>")
    ('uni_v1', '[a\\](http://x) \\| \\<b>')
    """
    return _MARKDOWN.sub(lambda sign: f"\\{sign[0]}", _SPACES.sub(" ", text))


#: What moves the cursor, colours, opens links, rings, or turns the direction of writing; not the line end and
#: the tabulator.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)


def shown(text: object) -> str:
    r"""The text with every control character written out.

    >>> shown("\x1b]8;;http://elsewhere\x07click\x1b]8;;\x07")
    '\\x1b]8;;http://elsewhere\\x07click\\x1b]8;;\\x07'
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], str(text))


_LOCK = threading.Lock()


def parse_python(text: str | bytes, mode: str = "exec") -> Any:
    """As `ast.parse`.

    CPython 3.11 counts the depth of a tree for all threads together: two that build one at the same time may
    both end with SystemError ("AST constructor recursion depth mismatch").

    >>> ast.unparse(parse_python("1+1", mode="eval"))
    '1 + 1'
    """
    with _LOCK:
        return ast.parse(text, mode=mode)


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV file as text, with the same line ends on every system."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as far as they matter.

    >>> duration(3725), duration(3600), duration(60), duration(4.2)
    ('1 h 02 min', '1 h 00 min', '1 min 00 s', '4 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{max(whole, 1)} s"
