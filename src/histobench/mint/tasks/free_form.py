"""Checkers for free-form answers: a number or a phrase (gsm8k, math, hotpotqa)."""

from __future__ import annotations

import math
import re

from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate
from histobench.mint.tasks.plain_arithmetic import (
    is_more_than_a_number,
    plain_arithmetic,
    without_last_words,
)

TOLERANCE = 0.05
#: No number, and no answer with a number in it, is longer than this.
LONGEST_NUMBER = 10_000
_NUMBER = re.compile(
    r"(?:[-+−]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d++)(?:\.\d++)?|\.\d++)(?:e[-+]?\d++)?|e[-+]?\d++)"
    r"(?:\s*+/\s*+\d++(?:\.\d++)?)?"
    r"|/\s*+\d++(?:\.\d++)?",  # what divides something else is no number of its own
    re.IGNORECASE,
)
_IMAGINARY = re.compile(r"[ij](?![^\W\d_])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLES = {"a", "an", "the"}


def published(reference: str, solution: str, *, recorded: bool = False) -> bool:
    """The benchmark's rule: both are numbers and within 5 %, else the reference occurs in the answer.

    `recorded` leaves out the absolute value in the tolerance, as the runs of 2023 did.
    """
    expected = reference.strip().lower()
    answer = solution.lower().strip()
    try:
        wanted, given = float(expected), float(answer)
    except ValueError:
        return expected in answer
    return abs(wanted - given) <= TOLERANCE * (wanted if recorded else abs(wanted))


def strict(reference: str, solution: str) -> bool:
    """A number is compared with the number that the answer gives; a phrase must occur as whole words.

    >>> strict("10.0", "$10 units"), strict("6", "16 miles"), strict("-108.0", "-108")
    (True, False, True)
    >>> strict("no", "I do not know"), strict("no", "No.")
    (False, True)
    """
    wanted = parse_number(reference)
    if wanted is not None:
        given = parse_number(solution)
        return given is not None and abs(wanted - given) <= TOLERANCE * abs(wanted)
    expected, answer = words(reference), words(solution)
    if expected in (["yes"], ["no"]):
        said = [word for word in answer if word in ("yes", "no")]
        return bool(said) and set(said) == set(expected)
    return contains_phrase(answer, expected)


def parse_number(text: str) -> float | None:
    """The one number that a text states, or `None` if there is none or it is not clear which.

    Units, currency signs, thousands commas, percent signs, LaTeX wrappers and what stands before the last
    equals sign are left aside.

    >>> parse_number("x = $1,200$ dollars"), parse_number("3/4"), parse_number("between 2 and 5") is None
    (1200.0, 0.75, True)
    """
    if len(text) > LONGEST_NUMBER:
        return None
    cleaned = plain_arithmetic(text)
    for plain in dict.fromkeys((cleaned, without_last_words(cleaned))):
        try:
            value = evaluate(_THOUSANDS.sub("", plain), MATHEMATICS)
        except NotArithmeticError:
            continue
        if isinstance(value, list | tuple | set) and len(value) == 1:
            (value,) = value
        if isinstance(value, complex) and value.imag == 0:
            value = value.real
        if not isinstance(value, str):  # a number in quotes is looked for below
            return _finite(value)
    if is_more_than_a_number(cleaned):
        return None
    found = {
        value
        for match in _NUMBER.finditer(cleaned)
        if (value := _fraction(match.group())) is not None and _stands_alone(cleaned, match)
    }
    return found.pop() if len(found) == 1 else None


def words(text: str) -> list[str]:
    """Lower-case words without articles and punctuation."""
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in _ARTICLES]


def contains_phrase(answer: list[str], phrase: list[str]) -> bool:
    """Whether the words of `phrase` occur in `answer` one after the other."""
    size = len(phrase)
    return size > 0 and any(answer[start : start + size] == phrase for start in range(len(answer) - size + 1))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _fraction(text: str) -> float | None:
    above, _, below = text.replace(",", "").partition("/")
    try:
        return _finite(float(above) / float(below)) if below else _finite(float(above))
    except (ValueError, ZeroDivisionError):
        return None


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    # The 2 of "H2O" and of "x2" is not a number of its own, nor is the 3 of an imaginary "3i".
    before = text[match.start() - 1] if match.start() else " "
    return not before.isalpha() and _IMAGINARY.match(text, match.end()) is None
