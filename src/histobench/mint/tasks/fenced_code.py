"""Code that comes wrapped in a Markdown fence."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*$", re.DOTALL)


def without_fence(text: str) -> str:
    """The code inside a fence that encloses the whole text; any other text as it is.

    >>> without_fence("```python\\nx = 1\\n```")
    'x = 1'
    >>> without_fence("x = 1")
    'x = 1'
    """
    match = _FENCE.match(text)
    return match[1] if match and "```" not in match[1] else text
