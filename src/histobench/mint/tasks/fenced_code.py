"""Code that comes wrapped in a Markdown fence."""

from __future__ import annotations

import re

_FENCE = "```"
_FIRST_LINE = re.compile(r"\s*+```[\w+-]*+[ \t]*+\n")


def without_fence(text: str) -> str:
    """The code inside a fence that encloses the whole text; any other text as it is.

    >>> without_fence("```python\\nx = 1\\n```")
    'x = 1'
    >>> without_fence("x = 1")
    'x = 1'
    """
    first = _FIRST_LINE.match(text)
    rest = text[first.end() :].rstrip() if first else ""
    if not rest.endswith(_FENCE):
        return text
    code = rest.removesuffix(_FENCE).rstrip(" \t").removesuffix("\n")
    return text if _FENCE in code else code
