"""An agent's answer: a label with a confidence, or "defer"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from histobench.core.plain_data import parse_json

DEFER = "defer"
_FENCE = re.compile(r"^```[a-zA-Z]*\s*|\s*```$")
#: So much of an answer is read: a label, a number and a sentence around them.
_READ_CHARS = 2000


@dataclass(frozen=True)
class Answer:
    """`label` is None for an answer that defers or cannot be read, which `problem` then says."""

    label: str | None = None
    confidence: float | None = None
    defer: bool = False
    problem: str = ""

    def as_record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def read_answer(text: str, options: Sequence[str]) -> Answer:
    """The answer in a solution: JSON with `label` and `confidence`, or the label alone.

    >>> read_answer('{"label": "str", "confidence": 0.8}', ["STR", "TUM"])
    Answer(label='STR', confidence=0.8, defer=False, problem='')
    >>> read_answer("TUM", ["STR", "TUM"]).label
    'TUM'
    >>> read_answer("defer", ["STR", "TUM"]).defer
    True
    >>> read_answer("STR or TUM", ["STR", "TUM"]).problem
    'it names none of the options, or several'
    """
    text = _FENCE.sub("", text.strip()[:_READ_CHARS]).strip()
    said: Any = _as_json(text)
    confidence = None
    if isinstance(said, dict):
        confidence = _confidence(said.get("confidence"))
        said = next((said[name] for name in ("label", "solution", "answer") if name in said), "")
    if not isinstance(said, str):
        return Answer(confidence=confidence, problem="the label is no text")
    bare = said.strip().strip("\"'.").strip()
    if bare.casefold() == DEFER:
        return Answer(confidence=confidence, defer=True)
    label = _option(said.strip(), options) or _option(bare, options)
    if label is None:
        return Answer(confidence=confidence, problem="it names none of the options, or several")
    return Answer(label, confidence)


def _as_json(text: str) -> Any:
    start, end = text.find("{"), text.rfind("}")
    for part in (text, text[start : end + 1] if 0 <= start < end else ""):
        try:
            return parse_json(part)
        except ValueError:
            continue
    return text


def _option(said: str, options: Sequence[str]) -> str | None:
    for option in options:
        if said.casefold() == option.casefold():
            return option
    named = [
        option
        for option in options
        if re.search(rf"(?<!\w){re.escape(option.casefold())}(?!\w)", said.casefold())
    ]
    # "loose stroma" names "stroma", too: the longer one is meant.
    longest = [option for option in named if not any(option != other and option in other for other in named)]
    return longest[0] if len(longest) == 1 else None


def _confidence(value: Any) -> float | None:
    """A share of 1; percentages are understood, other numbers are none."""
    try:
        number = float(str(value).strip().removesuffix("%"))
    except ValueError:
        return None
    if str(value).strip().endswith("%") or 1 < number <= 100:
        number /= 100
    return number if math.isfinite(number) and 0 <= number <= 1 else None
