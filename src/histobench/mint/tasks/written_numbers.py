"""Rewrites numbers as people and LaTeX write them to plain arithmetic."""

from __future__ import annotations

import re

SCALES = {"hundred": 100, "thousand": 1000, "k": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"""
_WORDS = dict(zip(_SMALL.split(), [*range(20), *range(20, 100, 10)], strict=True))
_PARTS = {"half": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourths": 4, "fifths": 5}
_SPELLED = rf"(?:{'|'.join([*_WORDS, *SCALES, *_PARTS])})\b"
_SPELLED_NUMBER = re.compile(
    rf"(?i)(?:\b(minus|negative)\s+)?(?:\ba\s+)?\b({_SPELLED}(?:[\s-]+(?:and\s+(?:a\s+)?)?{_SPELLED})*)"
)
_GROUP = r"(?:\\,|\{,\}|['’ \u00a0\u2009\u202f])(\d{3})"
_BRACES = (  # each round opens one more level, from the inside out
    (r"\\sqrt\s*\[([^\[\]{}]+)\]\s*\{([^{}]+)\}", r"((\2)**(1/(\1)))"),
    (r"\\sqrt\s*(?:\{([^{}]+)\}|(\d))", r" sqrt(\1\2)"),
    (r"\^\s*\{([^{}]+)\}", r"^(\1)"),
    (r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"((\1)/(\2))"),
)
_STEPS = (
    (r"(?i)^((?:that|it)['’]s [\d.]+)!$", r"\1"),
    (r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", r" \1 "),
    (r"\\(?:left|right|displaystyle)\b|\\[!()\[\]]|\\?[$€£`\"]|</?\w+>", ""),
    (r"(?<![\w)*])\*\*([^*]+)\*\*(?![\w(*])", r"\1"),
    (r"[−‒‑]|(?<![\w)])–(?=\s*[\d.])|(?i:\b(?:minus|negative)\s+(?=[\d.]))", "-"),
    (r"\^\s*\{?\\circ\}?|°", " degrees"),
    (r"\\?%|(?i:\bper ?cent\b)", " percent"),
    (rf"(?<![\d.])(\d{{1,3}}){_GROUP}{_GROUP}(?!\d)", r"\1\2\3"),
    (rf"(?<![\d.])(\d{{1,3}}){_GROUP}(?!\d)", r"\1\2"),
    (r"\\[,; ]", " "),
    (r"\\times|\\cdot|[×·]|(?<=\d)\s*[xX]\s*(?=10\b)", "*"),
    (r"√\s*\(?(\d+(?:\.\d+)?)\)?", r" sqrt(\1)"),
    (r"\|\s*-?\s*(\d+(?:\.\d+)?)\s*\|", r"\1"),
    (r"(\d+) out of (\d+)\b", r"\1/\2"),
    (r"\\pi\b|π", " pi "),
    (r"\+?(?:\\infty\b|∞)", " inf "),
    (r"\\cup\b", "∪"),
    (r"\\in\b", "∈"),
    (r"\\leq?\b|≤", "<="),
    (r"(\d)\s*\\[dt]?frac", r"\1+\\frac"),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r"((\1)/(\2))"),
    (r"(?<![\d.])(\d+)\s+(\d+)/(\d+)(?!\d)", r"(\1+\2/\3)"),
    (r"(\d+)!(?!=)", r"factorial(\1)"),
    (r"\\([{}])", r"\1"),
)
_REWRITING = [(re.compile(pattern), new) for pattern, new in (*_STEPS, *3 * _BRACES)]
_SIGNS = str.maketrans({"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "²": "^2", "³": "^3"})


def plain(text: str, *, lists: bool = False) -> str:
    """The text with LaTeX, signs, thousands and number words rewritten to plain arithmetic.

    >>> plain(r"2\\sqrt{3}"), plain("twenty-five"), plain("1.2 x 10^3"), plain("1,200")
    ('2 sqrt(3)', '25', '1.2*10^3', '1200')
    """
    text = text.translate(_SIGNS)
    if not lists:
        text = re.sub(
            r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda found: found[0].replace(",", ""), text
        )
    for pattern, new in _REWRITING:
        text = pattern.sub(new, text)
    return (text if re.search(r"\d", text) else _SPELLED_NUMBER.sub(_spelled, text)).strip()


def _spelled(match: re.Match[str]) -> str:
    sign, total, part = "-" if match[1] else "", 0, 0
    words = re.findall(r"[a-z]+", match[2].lower())
    for last, word in zip(["", *words], words, strict=False):
        part += _WORDS.get(word, 0)
        if word in SCALES:
            part = (part or 1) * SCALES[word]
            total, part = (total + part, 0) if part >= 1000 else (total, part)
        elif word in _PARTS:
            whole = total + part
            return (
                f"{sign}({whole}+1/{_PARTS[word]})" if last == "a" else f"{sign}{whole or 1}/{_PARTS[word]}"
            )
    return f"{sign}{total + part}"
