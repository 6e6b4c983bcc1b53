"""Rewrites the number in an answer, as people and LaTeX write it, to plain arithmetic."""

from __future__ import annotations

import re

_DEGREES = re.compile(r"\^\s*\{?\\circ\}?|°")
#: A unit in LaTeX; a power belongs to the unit, not to the number before it.
_LATEX_UNIT = re.compile(r"\\(?:text|mathrm|textbf)\{[^{}]*\}(?:\s*\^\s*(?:\{[^{}]*\}|-?\d))?")
_UNIT_POWER = re.compile(r"(?<=\d)(\s+(?:[kcdmn]?m|in|ft|yd|mi|s))\s*\^\s*\{?-?\d\}?")
_BOLD = re.compile(r"(?<![\w)])\*\*([^*]+)\*\*(?![\w(])")
_IMPLICIT_PRODUCT = re.compile(r"(?<=[\d)])\s*(?=(?:pi|sqrt)\b)")
_BOX = "\\boxed{"
_FIRST_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_DEGREES, " "),
    (_BOLD, r"\1"),
    # A dash that is no range, and the word, are a sign.
    (re.compile(r"−|(?<![\w)])[–‒‑]\s*(?=[\d.$\\])|\b(?:minus|negative)\s+(?=[\d.$\\])", re.I), "-"),
    (re.compile(r"(?<=\d)(?:\\,|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ""),
)
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_LATEX_UNIT, " "),
    (_UNIT_POWER, r"\1"),
    (re.compile(r"\\(?:left|right)\b|\\[,;! ()\[\]]|[$£€]|\\?%"), " "),
    (re.compile(r"\\times|\\cdot|×|·"), "*"),
    (re.compile(r"\\pi\b|π"), " pi "),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
)
#: From the inside out: each round opens one more level of braces.
_NESTED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\sqrt\s*\[([^\[\]{}]+)\]\s*\{([^{}]+)\}"), r"((\2)**(1/(\1)))"),
    (re.compile(r"\\sqrt\s*\{([^{}]+)\}"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]+)\}"), r"**(\1)"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"((\1)/(\2))"),
)
_LEVELS = 3


def plain_arithmetic(text: str) -> str:
    """What stands after the last equals sign, without units, currency and LaTeX.

    >>> plain_arithmetic(r"A = 2\\sqrt{3}\\,\\text{cm}^2"), plain_arithmetic("about −5")
    ('2*sqrt(3)', 'about -5')
    """
    text = re.split(r"[=≈~∼]", text)[-1]
    for pattern, replacement in _FIRST_STEPS:
        text = pattern.sub(replacement, text)
    text = "\n".join(map(_without_box, text.split("\n")))
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    for _ in range(_LEVELS):
        for pattern, replacement in _NESTED:
            text = pattern.sub(replacement, text)
    return _IMPLICIT_PRODUCT.sub("*", text.replace("^", "**")).strip()


def _without_box(line: str) -> str:
    """The line without its first box: what stands between its brace and the last one."""
    start, end = line.find(_BOX), line.rfind("}")
    inside = start + len(_BOX)
    return line[:start] + line[inside:end] + line[end + 1 :] if start >= 0 and inside <= end else line


def is_more_than_a_number(text: str) -> bool:
    """Whether plain arithmetic holds an operation, so that no number in it is the answer by itself."""
    return re.search(r"\*\*|\bsqrt\b|\bpi\b", text) is not None


def without_last_words(text: str) -> str:
    """The arithmetic without the unit or the words after it.

    >>> without_last_words("2*sqrt(3) square metres.")
    '2*sqrt(3)'
    """
    return re.sub(r"(?<=[\d)i])[ \t]+[A-Za-z][A-Za-z .,²³/]{0,40}$", "", text)
