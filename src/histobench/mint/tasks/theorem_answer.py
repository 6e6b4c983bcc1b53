"""Checkers for TheoremQA: a number, a list of numbers, a truth value or an option."""

from __future__ import annotations

import re
from typing import Any

from histobench.mint.tasks.arithmetic import BUILT_INS, NotArithmeticError, evaluate
from histobench.mint.tasks.strict_answer import chosen_option, stated_list, stated_number, stated_truth
from histobench.mint.tasks.written_numbers import same_number

RELATIVE_TOLERANCE = 0.04
#: Digits and commas, then points, then digits. Written so that no text is looked at twice: what follows a
#: number here is never a part of one, so it need not give anything back.
_UNSIGNED = r"[\d,]*+(?:\.++\d++|(?<=\d))"
_NUMERAL = rf"[-+]?{_UNSIGNED}"
_UNIT_AFTER = re.compile(rf"({_NUMERAL}) [^0-9 ]++$")
_UNIT_BEFORE = re.compile(rf"[^0-9 ]++ ({_NUMERAL})$")
_SIGN_AFTER = re.compile(r"(?<=\d)\D{1,2}$")
_SIGN_BEFORE = re.compile(rf"[^-+\d]{{1,2}}({_UNSIGNED})$")
_WHOLE = re.compile(_NUMERAL)
_THOUSANDS = re.compile(r"^[-+]?(\d{1,3}(,\d{3})*|(\d+))(\.\d+)?$")


def published(reference: Any, answer_type: str, solution: str, *, recorded: bool = False) -> bool:
    """The benchmark's rule without its `eval`; `recorded` does not recognise the letter of an option."""
    if recorded and answer_type == "option":
        return False
    return _agrees(_parse(solution), reference, answer_type)


def strict(reference: Any, answer_type: str, solution: str) -> bool:
    """As TheoremQA's authors compare, but whole numbers are met exactly (theirs rounds) and 1 is not True.

    Decimals are right within 4 %, lists in any order. Powers of ten, units and commas are read.

    >>> strict(1000, "integer", "10^3"), strict(3, "integer", "3.4"), strict(True, "bool", "1")
    (True, False, False)
    >>> strict(2.5, "float", "about 2.45 metres"), strict([1, 2], "list of integer", "[2, 1]")
    (True, True)
    """
    value: Any = None
    if answer_type in ("integer", "float"):
        readings = stated_number(solution)
        return any(_agrees(reading, reference, answer_type, exactly=True) for reading in readings)
    if answer_type == "option":
        letter = chosen_option(dict.fromkeys("abcd", ""), solution)
        value = f"({letter})" if letter else None
    else:
        value = stated_truth(solution) if answer_type == "bool" else stated_list(solution)
    return _agrees(value, reference, answer_type, exactly=True)


def _parse(solution: str) -> Any:
    text = _rewrite(solution)
    try:
        value = evaluate(text, BUILT_INS)
    except NotArithmeticError:
        return None
    if isinstance(value, set | tuple):
        items = list(value)
        return [item.real for item in items] if items and isinstance(items[0], complex) else items
    return value.real if isinstance(value, complex) else value


def _rewrite(text: str) -> str:
    """The published normalisation: each step rewrites the text for the next."""
    if "=" in text:
        text = text.split("=")[-1].strip()
    if "≈" in text:
        text = text.split("≈")[-1].strip()
    text = re.sub("[`$°]", "", text)
    text = {"true": "True", "yes": "True", "false": "False", "no": "False"}.get(text, text)
    for word in ("True", "False"):
        if word in text:
            text = word
            break
    if "approximately" in text:
        text = text.replace("approximately", "").strip()
    text = text.split(" or ")[0]
    text = _without_unit(text)
    text = re.sub(r"10\^(-?\d+)", r"math.pow(10, \1)", text)
    text = text.replace(" x ", "*").replace(" × ", "*")
    if _THOUSANDS.match(text):
        text = text.replace(",", "")
    for letter in "abcd":
        if f"{letter})" in text or f"{letter} )" in text or text.lower().strip() == letter:
            text = f"({letter})"
    option = re.search(r"\([a-d]\)", text)
    return f'"{option.group()}"' if option else text or "0"


def _without_unit(text: str) -> str:
    """The number without a unit after or before it, in the four shapes that are recognised, in this order."""
    for shape in (_UNIT_AFTER, _UNIT_BEFORE):
        if match := shape.match(text):
            text = match[1]
    # The number ends at the last digit; what is after it may be a comma or a point, too.
    if (sign := _SIGN_AFTER.search(text)) and _WHOLE.fullmatch(text, 0, sign.start()):
        text = text[: sign.start()]
    if match := _SIGN_BEFORE.match(text):
        text = match[1]
    return text


def _agrees(value: Any, reference: Any, answer_type: str, *, exactly: bool = False) -> bool:
    """`exactly`: a whole number is met by nothing else; the published rule rounds what was given."""
    if not isinstance(value, str | int | float | list):
        return False
    if answer_type.lower() in ("bool", "option"):
        return bool(value == f"({reference})" or value == reference)
    if answer_type in ("integer", "float"):
        return _same_number(value, reference, exactly)
    return (
        isinstance(value, list)
        and len(value) == len(reference)
        and all(isinstance(item, int | float) for item in value)
        and all(
            _same_number(one, other, exactly)
            for one, other in zip(sorted(value), sorted(reference), strict=True)
        )
    )


def _same_number(value: Any, reference: float, exactly: bool) -> bool:
    if not isinstance(value, int | float):
        return False
    try:
        if isinstance(reference, float):
            slack = 1e-12 * abs(reference) if exactly else 0.0  # 2.6 is within 4 % of 2.5
            return abs(value - reference) <= RELATIVE_TOLERANCE * abs(reference) + slack
        return same_number([value], reference) if exactly else round(value) == reference
    except (OverflowError, ValueError):  # infinity, NaN, a whole number beyond every float
        return False
