"""Labels as people write them: ids, float-looking ids such as 8.0, or class names."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from histobench.core.errors import HistobenchError, did_you_mean

log = logging.getLogger(__name__)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,2})?")
_LARGEST_ID = 9_999


def label_id(text: str) -> int | None:
    """The id in a label's text, or None when the text is not a whole number.

    >>> label_id("8.0"), label_id("TUM"), label_id("8.5")
    (8, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return int(number) if number.is_integer() else None


def is_fraction(text: str) -> bool:
    """Whether a label's text is a number, but no whole one.

    >>> is_fraction("1.5"), is_fraction("8.0"), is_fraction("TUM")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text) is not None and label_id(text) is None


def classes_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The classes of a dataset without a class map: sorted names, or the ids up to the largest as names.

    >>> classes_of(["TUM", "ADI", "TUM"]), classes_of(["2.0", "0"])
    (('ADI', 'TUM'), ('0', '1', '2'))
    """
    found = [label_id(text) for text in texts]
    ids = [identity for identity in found if identity is not None]
    if not ids or len(ids) < len(texts):
        names = tuple(sorted(set(texts)))
        if any(map(is_fraction, names)):
            some = ", ".join(name for name in names if is_fraction(name))[:60]
            log.warning("labels that are no whole numbers (%s) are taken as class names", some)
        return names
    if max(ids) > _LARGEST_ID:
        raise HistobenchError(
            f"label {max(ids)} is too large for a class id; give a class map (`class2id_txt`)"
        )
    return tuple(str(identity) for identity in range(max(ids) + 1))


def label_reader(texts: Sequence[str], classes: Sequence[str]) -> Callable[[str], int]:
    """A function from a label's text to its id; it raises for a label outside the class map.

    A whole number is an id. Only where classes are named by numbers ("3", "4", "5" for grades) and the
    labels cannot be ids but are all names, they are read as names.
    """
    ids = {name: identity for identity, name in enumerate(classes)}
    known = range(len(classes))
    by_name = all(text in ids for text in texts) and any(label_id(text) not in known for text in texts)

    def read(text: str) -> int:
        identity = None if by_name else label_id(text)
        if identity is not None and identity in known:
            return identity
        if text in ids:
            return ids[text]
        if identity is not None:
            raise HistobenchError(f"label {text} is outside the class map (ids 0 to {len(classes) - 1})")
        raise HistobenchError(f"label {text!r} is not in the class map; {did_you_mean(text, classes)}")

    return read
