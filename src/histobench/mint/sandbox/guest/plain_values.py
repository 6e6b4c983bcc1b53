"""Values as data: what may pass between a program and its tests, which run in two processes.

A value of a built-in or a well-known type is written out and made again, of exactly that type, on the other
side. Everything else stays where it is, and the other side gets a number for it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import sys
from collections.abc import Callable
from typing import Any

_SAFE_INT = 1 << 53
_ATOMS = (bool, str)
#: Sequences, by the tag that they are written with; a list is written as it is.
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "keys": lambda items: dict.fromkeys(items).keys(),
}
_PAIRS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
    "OrderedDict": collections.OrderedDict,
    "items": lambda pairs: dict(pairs).items(),
}
#: Types that are made again from the arguments which `_arguments` gives.
_MADE_OF_ARGUMENTS: dict[str, Callable[..., Any]] = {
    "complex": complex,
    "range": range,
    "slice": slice,
    "Fraction": fractions.Fraction,
    "Decimal": decimal.Decimal,
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "timedelta": datetime.timedelta,
}
_TAGS: dict[type, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
    type({}.keys()): "keys",
    dict: "dict",
    collections.Counter: "Counter",
    collections.OrderedDict: "OrderedDict",
    type({}.items()): "items",
    complex: "complex",
    range: "range",
    slice: "slice",
    fractions.Fraction: "Fraction",
    decimal.Decimal: "Decimal",
    datetime.date: "date",
    datetime.time: "time",
    datetime.datetime: "datetime",
    datetime.timedelta: "timedelta",
}
_BASES = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset)


def written(value: Any, keep: Callable[[Any], int]) -> Any:
    """The value as JSON; `keep` gives the number of an object that is no data.

    >>> written([1, (2.5, "a")], keep=id)
    [1, {'t': 'tuple', 'v': [2.5, 'a']}]
    """
    kind = type(value)
    if value is None or kind in _ATOMS or kind is float or (kind is int and -_SAFE_INT < value < _SAFE_INT):
        return value
    if kind is int:
        return {"t": "int", "v": hex(value)}
    if kind is list:
        return [written(item, keep) for item in value]
    if kind in (bytes, bytearray):
        return {"t": kind.__name__, "v": value.hex()}
    tag = _TAGS.get(kind)
    if tag in _SEQUENCES:
        return {"t": tag, "v": [written(item, keep) for item in value]}
    if tag in _PAIRS:
        pairs = value.items() if isinstance(value, dict) else value
        return {"t": tag, "v": [[written(key, keep), written(item, keep)] for key, item in pairs]}
    if tag is not None:
        return {"t": tag, "v": [written(item, keep) for item in _arguments(value)]}
    if kind.__module__.partition(".")[0] == "numpy" and (array := _array(value, keep)) is not None:
        return array
    for base in _BASES:  # a subclass that equals what its base equals is, for a test, that value
        if isinstance(value, base) and kind.__eq__ is base.__eq__:  # type: ignore[comparison-overlap]
            return written(base.__call__(value) if base is not bool else bool(value), keep)
    return {"t": "object", "v": keep(value)}


def made(data: Any, find: Callable[[int], Any]) -> Any:
    """The value that was written; `find` gives the object, or what stands for it, of a number."""
    if isinstance(data, list):
        return [made(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    tag, content = data["t"], data["v"]
    if tag == "object":
        return find(content)
    if tag == "int":
        return int(content, 16)
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "bytearray":
        return bytearray.fromhex(content)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([made(item, find) for item in content])
    if tag in _PAIRS:
        return _PAIRS[tag]([(made(key, find), made(item, find)) for key, item in content])
    if tag == "numpy":
        import numpy

        kind, shape, items = content
        array = numpy.array([made(item, find) for item in items], dtype=kind).reshape(shape or ())
        return array if shape is not None else array[()]
    return _MADE_OF_ARGUMENTS[tag](*(made(item, find) for item in content))


def _arguments(value: Any) -> tuple[Any, ...]:
    if isinstance(value, complex):
        return (value.real, value.imag)
    if isinstance(value, range | slice):
        return (value.start, value.stop, value.step)
    if isinstance(value, fractions.Fraction):
        return (value.numerator, value.denominator)
    if isinstance(value, decimal.Decimal):
        return (str(value),)
    if isinstance(value, datetime.timedelta):
        return (value.days, value.seconds, value.microseconds)
    clock = ("hour", "minute", "second", "microsecond")
    if isinstance(value, datetime.datetime):
        names: tuple[str, ...] = ("year", "month", "day", *clock)
    else:
        names = clock if isinstance(value, datetime.time) else ("year", "month", "day")
    return tuple(getattr(value, name) for name in names)


def _array(value: Any, keep: Callable[[Any], int]) -> Any:
    """A number or an array of numbers, with its exact type."""
    numpy = sys.modules["numpy"]
    if not isinstance(value, numpy.generic) and type(value) is not numpy.ndarray:
        return None
    array = numpy.asarray(value)
    widest = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # beyond these Python has no number of its own
    if array.dtype.itemsize > widest.get(array.dtype.kind, 0):
        return None
    shape = list(array.shape) if type(value) is numpy.ndarray else None
    items = [written(item, keep) for item in array.ravel().tolist()]
    return {"t": "numpy", "v": [array.dtype.str, shape, items]}
