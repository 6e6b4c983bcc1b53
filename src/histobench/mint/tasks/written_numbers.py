"""Reads numbers, lists, intervals and expressions as people and LaTeX write them.

Nothing is executed: `arithmetic.evaluate` reads values and is bounded in size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from unicodedata import numeric

from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate

SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_LETTERS = {"k": 1000, "K": 1000, "M": 10**6, "mn": 10**6, "B": 10**9, "bn": 10**9}
MAGNITUDE = rf"(?:\s*(?i:{'|'.join(SCALES)})|(?:{'|'.join(_LETTERS)}))\b"
_SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"""
_WORDS = dict(zip(_SMALL.split(), [*range(20), *range(20, 100, 10)], strict=True))
_HALVES = {"half": 2, "quarter": 4, "quarters": 4}
_ORDINALS = ["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_PARTS = {**_HALVES, **{f"{name}{s}": n for n, name in enumerate(_ORDINALS, 3) for s in ("", "s")}}
_PARTS |= {"twentieth": 20, "hundredth": 100, "hundredths": 100}
_SPELLED = rf"(?:{'|'.join([*_WORDS, *SCALES, *_PARTS])})\b"
_SPELLED_NUMBER = re.compile(  # an ordinal alone is no number, but "a fifth" and "two fifths" are
    rf"(?i)(?:\b(minus|negative)\s+)?(\b(?:an?\s+{_SPELLED}|(?:{'|'.join([*_WORDS, *SCALES, *_HALVES])})\b)"
    rf"(?:[\s-]+(?:and\s+(?:an?\s+)?|an?\s+)?{_SPELLED})*)"
)
_GROUP = r"(?:\\,|\{,\}|[_'’ \u00a0\u2009\u202f])(\d{3})"
_BRACES = (  # each round opens one more level, from the inside out
    (r"\\sqrt\s*\[([^\[\]{}]+)\]\s*\{([^{}]+)\}", r"((\2)**(1/(\1)))"),
    (r"\\sqrt\s*(?:\{([^{}]+)\}|(\d))", r" sqrt(\1\2)"),
    (r"\^\s*\{([^{}]+)\}", r"^(\1)"),
    (r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"((\1)/(\2))"),
)


_STEPS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?i)^((?:that|it)['’]s [\d.]+)!$", r"\1"),
    (r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", r" \1 "),
    (r"\\(?:left|right|displaystyle)\b|\\[!()\[\]]|\\?[$€£`\"]|</?\w+>", ""),
    (r"(?<![\w)*])(\*\*|__)([^*_]+)\1(?![\w(*])", r"\2"),
    (r"=+>|-+>|[→⇒]|\\(?:implies\b|[Rr]ightarrow\b)", "="),
    (r"÷", "/"),
    (r"[−‒‑]|(?<![\w)])–(?=\s*[\d.])|(?i:\b(?:minus|negative)\s+(?=[\d.]))", "-"),
    (r"\^\s*\{?\\circ\}?|°", " degrees"),
    (r"\\?%|(?i:\bper ?cent\b)", " percent"),
    (rf"(?<![\d.])(\d{{1,3}}){_GROUP}{_GROUP}(?!\d)", r"\1\2\3"),
    (rf"(?<![\d.])(\d{{1,3}}){_GROUP}(?!\d)", r"\1\2"),
    (r"\\[,; ]", " "),
    (r"\\times|\\cdot|[×·]|(?<=\d)\s*[xX]\s*(?=10\b)", "*"),
    (r"(?<![\d.,])0,(\d{2,})\b(?!,)", r"0.\1"),
    (r"√\s*\(?(\d+(?:\.\d+)?)\)?", r" sqrt(\1)"),
    (r"\|\s*-?\s*(\d+(?:\.\d+)?)\s*\|", r"\1"),
    (
        r"(\d+) (?:out of (\d+)\b|over (\d+)\b(?=\W*$))|\b1 in (\d+)\b",
        lambda found: f"{found[1] or 1}/{found[2] or found[3] or found[4]}",
    ),
    (r"(?i)\b(ln|log|sqrt|sin|cos|tan)\s+(\d+(?:\.\d+)?)\b", r"\1(\2)"),
    (r"\\pi\b|π", " pi "),
    (r"\bpi\s+(?=[A-Za-z(]\b)", "pi*"),
    (r"\+?(?:\\infty\b|∞)", " inf "),
    (r"\\cup\b", "∪"),
    (r"\\in\b", "∈"),
    (r"\\leq?\b|≤", "<="),
    (r"\\geq?\b|≥", ">="),
    (r"(\d)\s*\\[dt]?frac", r"\1+\\frac"),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r"((\1)/(\2))"),
    (r"(?<![\d.])(\d+)\s+(\d+)/(\d+)(?!\d)", r"(\1+\2/\3)"),
    (r"(\d+)!(?!=)", r"factorial(\1)"),
    (r"\\([{}])", r"\1"),
)
_REWRITING = [(re.compile(pattern), new) for pattern, new in (*_STEPS, *3 * _BRACES)]
_FRACTION = re.compile("[¼-¾⅐-⅞]")
_EXPONENT = re.compile("[⁺⁻⁰¹²³⁴-⁹]+")
_RAISED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")

REASON = re.compile(r"(?i)\s*[,;.:(]?\s*\b(?:because|since|as|which|given|where|when|due|after|for|if)\b")
_UNIT = re.compile(
    r"(?:[msgLlhJNKMVAWCFT]|[cmknµ]m|[kmµ]g|m[lL]|min|hr|ft|in|yd|mi|lb|oz|k?Pa|k?Hz|eV|mol|rad|k[JWV])\b"
)
_NOT_UNIT = re.compile(r"(?i)(?:[^\W\d_]|and|to|sin|cos|tan|log|ln|exp)\b")
COMMENT = re.compile(r"(?i)(?<=[^\s(])\s+\((?!(?:or|but)\b)(?:[^()]*[^\W\d_]{2}|\s*=)[^()]*\)")
_VALUE = re.compile(
    r"(?i)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|\b(?:sqrt|log|ln|exp|sin|cos|tan|factorial)\s*(?=\()"
    r"|\b(?:pi|inf|e)\b|\^(?=\s*[\d(-])|[-+*/()\s])+"
)


def plain(text: str, *, lists: bool = False) -> str:
    """The text with LaTeX, signs, thousands and number words rewritten to plain arithmetic.

    >>> plain(r"2\\sqrt{3}"), plain("twenty-five"), plain("1.2 x 10^3"), plain("1,200")
    ('2 sqrt(3)', '25', '1.2*10^3', '1200')
    """
    text = _EXPONENT.sub(lambda found: f"^({found[0].translate(_RAISED)})", text)
    text = _FRACTION.sub(lambda found: f" {Fraction(numeric(found[0])).limit_denominator(10)}", text)
    if not lists:
        text = re.sub(
            rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP}+,\d\d|(?:\.\d{{3}})+,\d\d|(?:\.\d{{3}}){{2,}})(?![\d,]|\.\d)",
            lambda found: re.sub(r"[^\d,]", "", found[0]).replace(",", "."),
            text,
        )
        text = re.sub(
            r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda found: found[0].replace(",", ""), text
        )
    for pattern, new in _REWRITING:
        text = pattern.sub(new, text)
    return (text if re.search(r"\d", text) else _SPELLED_NUMBER.sub(_spelled, text)).strip()


def scaled(value: float, rest: str) -> tuple[list[float], str]:
    """The readings of a number by what follows it (2k, 1.2M; 300 K may be a unit), and what is left.

    >>> scaled(1.2, "M"), scaled(300, " K"), scaled(5, " cm")
    (([1200000.0], ''), ([300, 300000], ' K'), ([5], ' cm'))
    """
    if found := re.match(MAGNITUDE, rest):
        word = found[0].strip()
        return [value * (_LETTERS.get(word) or SCALES[word.lower()])], rest[found.end() :]
    unit = re.match(r"\s+([KM])\b", rest)
    return ([value, value * _LETTERS[unit[1]]] if unit else [value]), rest


def _spelled(match: re.Match[str]) -> str:
    """The value of a spelled number; "two and a half million" and "half a dozen" are read as well."""
    total = base = part = Fraction(0)
    for word in re.findall(r"[a-z]+", match[2].lower()):
        part += _WORDS.get(word, 0)
        if word == "and":
            base, part = base + part, Fraction(0)
        elif word == "hundred":
            part = (part or Fraction(1)) * 100
        elif word in SCALES:
            total, base, part = total + (base + part or Fraction(1)) * SCALES[word], Fraction(0), Fraction(0)
        elif word in _PARTS:
            part = (part or Fraction(1)) * Fraction(1, _PARTS[word])
    value = total + base + part
    written = str(value) if value.denominator == 1 else f"({value})"
    return f"-{written}" if match[1] else written


def number_in(text: str, names: Mapping[str, float] | None = None) -> float | None:
    """The value of plain arithmetic, or None if it is not arithmetic."""
    text = re.sub(r"(?<![\w.])0+(?=\d)", "", text.replace("^", "**").strip())
    text = re.sub(r"(?<=[\d)])\s*(?=[A-Za-z(])(?![eE][-+]?\d)", "*", text)
    try:
        value = evaluate(text, {**MATHEMATICS, "inf": math.inf, **(names or {})})
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except (NotArithmeticError, OverflowError):
        return None


def structure_of(text: str) -> list[tuple[str, list[str]]]:
    """Brackets and items of a list, set or interval; several for a union; one item for an expression."""
    text = plain(text, lists=True).strip(" .")
    text = re.sub(r"(?i)^(?:the\s+)?(?:point|pair|set|interval|vector)\s+(?=[\[({])", "", text)
    text = re.sub(r"^(?:\w+\s*∈|\([A-Za-z]\w*(?:, *[A-Za-z]\w*)*\)\s*=)\s*", "", text)
    if between := re.fullmatch(r"([^<>=]+)<(=?)\s*[A-Za-z]\s*<(=?)([^<>=]+)", text):
        text = f"{'[' if between[2] else '('}{between[1]},{between[4]}{']' if between[3] else ')'}"
    if bound := re.fullmatch(r"[A-Za-z]\s*([<>])(=?)([^<>=]+)", text):
        open_end = "(["[bool(bound[2])], ")]"[bool(bound[2])]
        text = f"{open_end[0]}{bound[3]},inf)" if bound[1] == ">" else f"(-inf,{bound[3]}{open_end[1]}"
    found = []
    for piece in text.split("∪"):
        listed = re.fullmatch(r"\s*([\[({])([^\[\]{}]*,[^\[\]{}]*)([\])}])\s*", piece)
        items = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", listed[2] if listed else piece)
        items = [item.rpartition("=")[2].strip() for item in items]
        if not all(items) or any(
            re.search(r"[^\W\d_]{3}", item) and number_in(item) is None for item in items
        ):
            return []
        found.append((listed[1] + listed[3] if listed else "", items))
    return found


def same_number(given: Sequence[float], wanted: float, places: int = 0) -> bool:
    """Whether a reading, rounded to the places of the reference, is that number; whole numbers exactly."""
    slack = 1e-9 * max(1.0, abs(wanted)) + (0.5 * 10.0**-places if places else 0.0)
    return any(value == wanted or abs(value - wanted) <= slack for value in given)


def letters_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![^\W\d_])[^\W\d_](?![^\W\d_])", text)) - {"e"}


def same_value(reference: str, given: str) -> bool:
    """Whether two expressions agree at five points; nothing is simplified, so the time is bounded."""
    names = sorted(letters_in(reference))
    for point in (0.37, 0.83, 1.29, 1.71, 2.53):
        values = {name: point + 0.11 * number for number, name in enumerate(names)}
        wanted, found = number_in(reference, values), number_in(given, values)
        if wanted is None or found is None or not same_number([found], wanted):
            return False
    return set(names) == letters_in(given)


def value_of(text: str) -> tuple[list[float], str] | None:
    """The value of a plain text (a percentage has two readings) and its unit; None if there is more to it."""
    text = re.sub(
        r"^\W*?(?:(?:about|approximately|around|roughly|exactly|only)\s+|[~≈:]\s*|(?<![<>])=\s*)+", "", text
    )
    text = COMMENT.sub("", text).strip(" \t\n*'\"")
    text = text.removesuffix("}") if "{" not in text else text
    if inside := re.fullmatch(r"[\[{]([^\[\]{},]*)[\]}]", text):
        text = inside[1].strip()
    if again := re.fullmatch(r"(.*[\w.])\s+\(([^()]*)\)(.*)", text):  # 1/2 (0.5)
        one, other = value_of(plain(again[1] + again[3])), value_of(again[2])
        if one and other:
            return one if set(one[0]) & set(other[0]) else None
    found = _VALUE.match(text)
    if found is None or re.match(r"\d{4}s\b", text):
        return None
    written, rest = found[0].rstrip(), text[len(found[0].rstrip()) :]
    if (value := number_in(written)) is None:
        return None
    values, rest = scaled(value, rest)
    if percent := re.match(r"\s*percent\b", rest):
        values, rest = [value, value / 100], rest[percent.end() :]
    return None if _is_more(rest) else (values, "" if REASON.match(rest) else rest.strip(" .,;:!'\")*"))


def _is_more(rest: str) -> bool:
    """Whether what follows a value is more than a unit, other words or a reason."""
    words = re.findall(r"[^\W\d_]+", rest)
    if REASON.match(rest) or not words:
        return not words and bool(re.search(r"[^\s.,;:!'\")]", rest))
    powers = re.sub(r"(?<=[^\W\d_])(?:\s?\^)?\(?-?[1-3]\b\)?", "", rest)
    if re.search(r"[^\w\s.,;:!'’\")*/·-]|[\d_]|\b(?:or|half|plus|minus|times)\b", powers):
        return True
    adjacent = rest[0].isalpha() and len(words[0]) < 3
    return not _UNIT.match(words[0]) and (adjacent or bool(_NOT_UNIT.match(words[0])))
