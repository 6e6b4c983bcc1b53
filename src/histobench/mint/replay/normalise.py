"""What may differ between two machines that ran the same code: paths, addresses, cell numbers."""

from __future__ import annotations

import re

_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0xADDRESS"),
    (re.compile(r"\b(In|Out) ?\[\d+\]"), r"\1[N]"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
    (re.compile(r"File (?:<hidden_filepath>|[^\s:]+\.py|[^\s:]+\.pyx?):?\d*"), "File PATH"),
    (re.compile(r"(?:/[\w.+-]+)+/([\w.+-]+\.pyx?)(?::\d+)?"), r"PATH/\1"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


def normalised(text: str) -> str:
    """The observation without what depends on the machine.

    >>> normalised("<f at 0x7f3a>, Out[3]: 1")
    '<f at 0xADDRESS>, Out[N]: 1'
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text.strip()
