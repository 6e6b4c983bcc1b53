"""Syntax trees of Python text, one thread at a time."""

from __future__ import annotations

import ast
import threading
from typing import Any

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
