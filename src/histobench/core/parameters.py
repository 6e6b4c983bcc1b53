"""What a parameter may be: checked where it comes in, before any work; every refusal names the parameter."""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import check_writable
from histobench.core.plain_data import LARGEST


class InvalidParameterError(HistobenchError, ValueError):
    """A value that a parameter cannot have; a ValueError as well, as scikit-learn expects."""


def whole_number(value: Any, name: str, *, least: int) -> int:
    """The value as an int: Python's and NumPy's whole numbers within the bounds, no texts, floats or flags.

    >>> import numpy as np
    >>> whole_number(np.int64(5), "n_neighbors", least=1)
    5
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= LARGEST:
        limit = "" if number is None or number <= LARGEST else f" and at most {LARGEST}"
        raise refused(name, f"a whole number of at least {least}{limit}", value)
    return number


def positive_number(value: Any, name: str, *, finite: bool = True) -> float:
    """The value as a float above 0."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf if value > 0 else math.nan
    if not number > 0 or (finite and number == math.inf):
        raise refused(name, f"a {'finite ' if finite else ''}number above 0", value)
    return number


def flag(value: Any, name: str) -> bool:
    """True or False, Python's or NumPy's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise refused(name, "True or False", value)


def text(value: Any, name: str) -> str:
    """A text of one line with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise refused(name, "a text", value)
    if not is_writable(value) or len(value.splitlines()) > 1 or "\0" in value:
        raise refused(name, "a text of one line that UTF-8 can hold", value)
    return str(value)  # NumPy has texts of its own


def is_writable(value: str) -> bool:
    """Whether a file can hold the text: halves of characters, which broken file names give, cannot be."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def texts(value: Any, name: str) -> list[str]:
    """One text or several; a text is one, and not its letters.

    >>> texts("KNN", "tasks"), texts(("KNN", "Proto"), "tasks")
    (['KNN'], ['KNN', 'Proto'])
    """
    if isinstance(value, str):
        return [text(value, name)]
    if not _is_list(value):
        raise refused(name, "a text or a list of texts", value)
    several = [text(item, name) for item in value]
    if not several:
        raise InvalidParameterError(f"{name}: give at least one")
    return several


def shares(value: Any, name: str) -> str:
    """Shares of train/val/test as text: "0.7/0.1/0.2" as it is, two or three numbers joined.

    >>> shares((0.7, 0.1, 0.2), "split")
    '0.7/0.1/0.2'
    """
    if isinstance(value, str):
        return value
    parts = list(value) if _is_list(value) else []
    wrong = [part for part in parts if isinstance(part, bool) or not isinstance(part, Real)]
    if wrong or len(parts) not in (2, 3):
        raise refused(name, "shares of train/val/test such as '0.7/0.1/0.2' or (0.7, 0.1, 0.2)", value)
    return "/".join(repr(float(part)) for part in parts)


def one_of(value: Any, name: str, known: Iterable[str]) -> str:
    """One of the known texts."""
    names = list(known)
    if not isinstance(value, str):
        raise refused(name, f"one of {', '.join(names)}", value)
    if value not in names:
        raise InvalidParameterError(f"{name} {value!r} is unknown; {did_you_mean(value, names)}")
    return str(value)


def file_path(value: Any, name: str) -> Path:
    """A text or path object as a path; `~` is the user's folder."""
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise refused(name, "a path", value)
    try:
        return Path(value).expanduser()
    except RuntimeError:  # no one is called so
        return Path(value)


def folder_path(value: Any, name: str) -> Path:
    """A path at which a folder is, or can be made, and files be put into."""
    path = file_path(value, name)
    try:
        for place in (path, *path.absolute().parents):
            if place.is_dir():
                break
            if place.exists() or place.is_symlink():
                raise InvalidParameterError(f"{name}: {place} is a file; give a folder")
        check_writable(path)
    except OSError as error:
        raise InvalidParameterError(
            f"{name}: cannot write to {reprlib.repr(str(path))}: {error.strerror or error}"
        ) from error
    return path


@contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Parameters that the rooms below call otherwise are called, in an error, as the caller knows them.

    >>> with renamed(resize_size="size"):
    ...     raise HistobenchError("use `resize_size` 224")
    Traceback (most recent call last):
    histobench.core.errors.HistobenchError: use `size` 224
    """
    try:
        yield
    except HistobenchError as error:
        said = str(error)
        for below, here in names.items():
            said = said.replace(f"`{below}`", f"`{here}`")
            said = f"{here}{said.removeprefix(below)}" if said.startswith(f"{below}: ") else said
        if said == str(error):
            raise
        raise retold(error, said) from error


def retold(error: HistobenchError, said: str) -> HistobenchError:
    """The error in other words; a value that was refused stays one."""
    return (InvalidParameterError if isinstance(error, InvalidParameterError) else HistobenchError)(said)


def _is_list(value: Any) -> bool:
    """Whether it holds several values; a text does not, nor an array of no dimensions."""
    is_array_of_one = getattr(value, "ndim", 1) == 0
    return hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict) and not is_array_of_one


def refused(name: str, expected: str, value: Any) -> InvalidParameterError:
    found = reprlib.repr(value)
    if "\n" in found or len(found) > 80:
        found = f"{type(value).__module__}.{type(value).__qualname__}"
    return InvalidParameterError(f"{name}: expected {expected}, found {found}")
