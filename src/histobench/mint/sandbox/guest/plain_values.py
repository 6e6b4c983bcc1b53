"""Values as data: what may pass between a program and its tests, which run in two processes.

A value of a built-in or a well-known type is written out and made again, of exactly that type, on the other
side. Everything else stays where it is, and the other side gets a number for it.

`check` is the one description of what data may look like. The host checks everything that a program sends,
and `made` trusts nothing else: no type, size or item of the data is used before it was checked.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import math
import numbers
import re
import struct
import sys
from collections.abc import Callable
from types import MappingProxyType
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
_MADE_OF_ARGUMENTS: dict[str, type[Any]] = {
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
    **{kind: tag for tag, kind in _MADE_OF_ARGUMENTS.items()},
}
#: NumPy's numbers that Python has an equal number for, with the least and the greatest integer.
_NUMPY_KINDS: dict[str, tuple[int, int] | None] = {"b1": None, "f2": None, "f4": None, "f8": None}
_NUMPY_KINDS |= {"c8": None, "c16": None}
_NUMPY_KINDS |= {f"i{size}": (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) for size in (1, 2, 4, 8)}
_NUMPY_KINDS |= {f"u{size}": (0, (1 << 8 * size) - 1) for size in (1, 2, 4, 8)}
#: Numbers shorter than Python's.
_SHORT_FLOATS = {"f2": "<e", "f4": "<f", "c8": "<f"}
_PARTS = (int, float, str, type(None))
#: How to take the value out of a subclass that equals what its base equals, whatever else it redefines.
_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    dict: dict.copy,
    set: lambda value: set().union(value),
    frozenset: lambda value: frozenset().union(value),
}
#: Wrappers of the standard library that equal what they wrap.
_WRAPPERS: dict[type, Callable[[Any], Any]] = {
    collections.UserList: list,
    collections.UserString: str,
    collections.UserDict: dict,
    collections.ChainMap: dict,
    MappingProxyType: dict,
}
#: Numbers of other packages (SymPy's integers, mpmath's, long ones of NumPy), as they are registered.
_NUMBERS: dict[type, Callable[[Any], Any]] = {
    numbers.Integral: int,
    numbers.Real: float,
}


def written(value: Any, keep: Callable[[Any], int]) -> Any:
    """The value as JSON; `keep` gives the number of an object that is no data.

    >>> written([1, (2.5, "a")], keep=id)
    [1, {'t': 'tuple', 'v': [2.5, 'a']}]
    """
    kind = type(value)
    if kind is str and _SURROGATE_PAIR.search(value):
        return {"t": "object", "v": keep(value)}  # JSON would make one character of the two
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
        arguments = _arguments(value)
        is_plain = getattr(value, "tzinfo", None) is None and not getattr(value, "fold", 0)
        if is_plain and all(type(part) in _PARTS for part in arguments):
            return {"t": tag, "v": [written(part, keep) for part in arguments]}
        return {"t": "object", "v": keep(value)}
    is_numpy = str(getattr(kind, "__module__", "")).partition(".")[0] == "numpy"
    if is_numpy and (array := _array(value, keep)) is not None:
        return array
    plain = _plain(value, is_numpy)
    return {"t": "object", "v": keep(value)} if plain is value else written(plain, keep)


def _plain(value: Any, is_numpy: bool) -> Any:
    """The value of a built-in type that equals what `value` equals; `value` itself where there is none."""
    kind = type(value)
    for base, value_of in _BASES.items():
        if isinstance(value, base):
            # NumPy's text compares as text does, by a function of its own.
            same = kind.__eq__ is base.__eq__ or (is_numpy and kind.__name__ in ("str_", "bytes_"))
            return value_of(value) if same else value
    if kind in _WRAPPERS:
        return _WRAPPERS[kind](value)
    for registered, number_of in _NUMBERS.items():
        if isinstance(value, registered):
            try:
                number = number_of(value)
                # SymPy's Float(6) equals 6.0 and not 6, as no number of Python does.
                whole = int(number) if isinstance(number, float) and number.is_integer() else number
                return number if number == value and whole == value else value
            except (TypeError, ValueError, ArithmeticError):
                return value
    return value


def made(data: Any, find: Callable[[int], Any]) -> Any:
    """The value of checked data; `find` gives the object, or what represents it, of a number."""
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


class NotDataError(ValueError):
    """What was sent does not describe a value."""


_MOST_LEVELS = 200
_MOST_DIMENSIONS = 32
_MOST_DIGITS = 1 << 20
_FRACTION_DIGITS = 1 << 14
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HEX_NUMBER = re.compile(r"-?0x[0-9a-f]+", re.ASCII)
_HEX_BYTES = re.compile(r"(?:[0-9a-f]{2})*", re.ASCII)
_DECIMAL = re.compile(r"-?(?:Infinity|s?NaN[0-9]{0,20}|[0-9]+(?:\.[0-9]*)?(?:E[+-]?[0-9]{1,18})?)", re.ASCII)
_CLOCK_PARTS = {"date": 3, "time": 4, "datetime": 7, "timedelta": 3}


def check(data: Any, level: int = 0) -> None:
    """Raise NotDataError unless `data`, parsed JSON, has exactly the form that `written` gives a value."""
    kind = type(data)
    if data is None or kind in _ATOMS or kind is float:
        return
    if kind is int:
        _require(-_SAFE_INT < data < _SAFE_INT, "a number")
        return
    _require(level < _MOST_LEVELS, f"nesting of more than {_MOST_LEVELS} levels")
    if kind is list:
        for item in data:
            check(item, level + 1)
        return
    _require(kind is dict and data.keys() == {"t", "v"} and type(data["t"]) is str, "a tag")
    tag, content = data["t"], data["v"]
    if tag == "object":
        _require(type(content) is int and 0 <= content < _SAFE_INT, "an object's number")
    elif tag == "int":
        _require(_is_text(content, _HEX_NUMBER, _MOST_DIGITS), "an integer")
    elif tag in ("bytes", "bytearray"):
        _require(_is_text(content, _HEX_BYTES), "bytes")
    elif tag == "numpy":
        _check_array(content)
    elif tag in _SEQUENCES or tag in _PAIRS:
        _require(type(content) is list, "items")
        for item in content:
            if tag in _PAIRS:
                _require(type(item) is list and len(item) == 2, "a pair")
            check(item, level + 1)
            if tag not in ("tuple", "deque"):
                _require(_is_hashable(item[0] if tag in _PAIRS else item), "a key")
    elif tag in _MADE_OF_ARGUMENTS:
        _require(type(content) is list, "arguments")
        _check_arguments(tag, content)
    else:
        raise NotDataError(f"no value has the tag {tag[:40]!r}")


def checked_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """What a program answered, with what it may consist of and nothing else; NotDataError otherwise.

    Called by the host, before any of it goes to the tests or is compared.
    """
    kept: dict[str, Any] = {}
    for key, kind in _ANSWERED.items():
        if key in answer:
            if type(answer[key]) is not kind:
                raise NotDataError(f"{key!r} is not of the type {kind.__name__}")
            kept[key] = answer[key][:2000] if kind is str else answer[key]
    for key in ("value", "changed"):
        if key in answer:
            check(answer[key])
            kept[key] = answer[key]
    return kept


_ANSWERED: dict[str, type] = {"found": bool, "module": str, "changed": list, "error": str, "message": str}


def _check_arguments(tag: str, content: list[Any]) -> None:
    if tag == "Decimal":
        _require(len(content) == 1 and _is_text(content[0], _DECIMAL, _FRACTION_DIGITS), "a decimal number")
        try:
            decimal.Decimal(content[0])
        except decimal.InvalidOperation:
            raise NotDataError("not a decimal number that exists") from None
    elif tag == "complex":
        _require(len(content) == 2 and all(type(part) is float for part in content), "a complex number")
    elif tag == "Fraction":
        _require(len(content) == 2 and all(_is_int(part, _FRACTION_DIGITS) for part in content), "a fraction")
        _require(_int(content[1]) > 0, "a fraction")
    elif tag in ("range", "slice"):
        optional = tag == "slice"
        _require(len(content) == 3, f"a {tag}")
        _require(all(_is_int(part) or (optional and part is None) for part in content), f"a {tag}")
        _require(optional or _int(content[2]) != 0, "a range")
    else:
        _require(len(content) == _CLOCK_PARTS[tag] and all(type(part) is int for part in content), f"a {tag}")


def _check_array(content: Any) -> None:
    _require(type(content) is list and len(content) == 3, "an array")
    kind, shape, items = content
    _require(type(kind) is str and kind in _NUMPY_KINDS and type(items) is list, "an array of numbers")
    size = 1
    if shape is not None:
        _require(type(shape) is list and len(shape) <= _MOST_DIMENSIONS, "an array's shape")
        for length in shape:
            _require(type(length) is int and 0 <= length < 1 << 31, "an array's shape")
            size *= length
        _require(math.prod(filter(None, shape)) < 1 << 31, "an array's shape")
    _require(len(items) == size, "an array's size")
    bounds = _NUMPY_KINDS[kind]
    for item in items:
        if bounds:
            _require(_is_int(item, 24) and bounds[0] <= _int(item) <= bounds[1], "an array's integer")
        elif kind[0] == "c":
            _require(type(item) is dict and item.keys() == {"t", "v"} and item["t"] == "complex", "an item")
            _require(type(item["v"]) is list, "an item")
            _check_arguments("complex", item["v"])
            _require(all(_fits(part, kind) for part in item["v"]), "an array's item")
        else:
            _require(type(item) is (bool if kind == "b1" else float), "an array's item")
            _require(_fits(item, kind), "an array's item")


def _fits(number: float, kind: str) -> bool:
    """Whether a number of this kind can have this value."""
    form = _SHORT_FLOATS.get(kind)
    try:
        return form is None or number != number or struct.unpack(form, struct.pack(form, number))[0] == number
    except OverflowError:
        return False


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise NotDataError(f"not {what}")


def _is_text(content: Any, pattern: re.Pattern[str], most: int = sys.maxsize) -> bool:
    return type(content) is str and len(content) <= most and pattern.fullmatch(content) is not None


def _is_int(data: Any, most: int = _MOST_DIGITS) -> bool:
    if type(data) is int:
        return -_SAFE_INT < data < _SAFE_INT
    is_tagged = type(data) is dict and data.keys() == {"t", "v"} and data["t"] == "int"
    return is_tagged and _is_text(data["v"], _HEX_NUMBER, most)


def _int(data: Any) -> int:
    return data if type(data) is int else int(data["v"], 16)


def _is_hashable(data: Any) -> bool:
    """Whether the value of checked data can be a member of a set."""
    if type(data) is not dict:
        return type(data) is not list
    if data["t"] in ("tuple", "frozenset"):
        return all(_is_hashable(item) for item in data["v"])
    if data["t"] == "numpy":
        return data["v"][1] is None
    if data["t"] == "Decimal":
        return "s" not in data["v"][0]  # a signaling NaN has no hash
    return data["t"] in ("object", "int", "bytes", "range", *_MADE_OF_ARGUMENTS) and data["t"] != "slice"


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
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    if kind not in _NUMPY_KINDS:  # beyond these Python has no number of its own
        return None
    shape = list(array.shape) if type(value) is numpy.ndarray else None
    items = [written(item, keep) for item in array.ravel().tolist()]
    return {"t": "numpy", "v": [kind, shape, items]}
