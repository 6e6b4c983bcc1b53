"""Names and texts of others in files that programs interpret: spreadsheets and Markdown."""

from __future__ import annotations

import re

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
