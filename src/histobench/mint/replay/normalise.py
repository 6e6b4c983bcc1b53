"""When two observations are the same although two machines made them.

`same` leaves out paths, addresses and cell numbers. Behind a path stands a file: in a traceback, a frame of a
library is known by its function, and the lines shown of its source go with the path. `alike` also leaves out
what belongs to Python's version and the machine's speed: how a recursion ended, and where a cell was when its
time was up.
"""

from __future__ import annotations

import re

TRUNCATED = "...\n[Output Truncated]"
#: Two truncated texts are compared as far as both go, but not on less than this.
LEAST = 500

_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),  # colours, where a command took its output for a terminal
    (re.compile(r"\bat 0x[0-9a-fA-F]+"), "at ADDRESS"),
    (re.compile(r"\b(In|Out) ?\[\d+\]"), r"\1[N]"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
    # A hidden path is followed by a line number or, where the hiding went wrong, by the path's beginning.
    (
        re.compile(
            r"^( *File )(?:(?:[~/.][^\s:,]*|<frozen [\w.]+>):\d+|<hidden_filepath>:[^\s,]*)", re.MULTILINE
        ),
        r"\1PATH",
    ),
    (re.compile(r"(?:~|\.)?(?:/[\w.+-]+)+/([\w.+-]+\.pyx?)(?::\d+)?"), r"PATH/\1"),
    # The numbered lines under a frame of a file, up to the empty line that ends it.
    (re.compile(r"^(File PATH[^\n]*)(?:\n[^\n]+)+", re.MULTILINE), r"\1"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)
_RULER = "-" * 75
_TIME_IS_UP = re.compile(r"^TimeoutError(?:: Timed out after| +Traceback)", re.MULTILINE)
_RECURSION = re.compile(r"^RecursionError(?:: maximum recursion| +Traceback)", re.MULTILINE)


def normalised(text: str) -> str:
    """The observation without what depends on the machine.

    >>> normalised("<f at 0x7f3a>, Out[3]: 1")
    '<f at ADDRESS>, Out[N]: 1'
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text.strip()


def same(one: str, other: str) -> bool:
    """Whether two observations differ in nothing but paths, addresses and cell numbers."""
    cut = one.endswith(TRUNCATED) and other.endswith(TRUNCATED)
    one, other = normalised(one.removesuffix(TRUNCATED)), normalised(other.removesuffix(TRUNCATED))
    if cut:
        # Longer paths leave less room for the rest.
        shared = max(LEAST, min(len(one), len(other)) - 1)
        return one[:shared] == other[:shared]
    return one == other


def alike(one: str, other: str) -> bool:
    """Whether they are the same but for Python's version and the machine's speed."""
    return same(one, other) or _ending(one) == _ending(other)


def _ending(text: str) -> str:
    text = normalised(text)
    for name, pattern in (("TimeoutError", _TIME_IS_UP), ("RecursionError", _RECURSION)):
        if pattern.search(text):
            return f"{text.partition(_RULER)[0].strip()}\n{name}".strip()
    return text
