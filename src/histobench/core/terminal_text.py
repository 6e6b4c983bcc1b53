"""Text from elsewhere (models, servers, files, names of encoders) as a terminal may show it."""

from __future__ import annotations

import re

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
