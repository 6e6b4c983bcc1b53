"""Builtin values as JSON: what may pass between a program and its tests, which run in two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SAFE_INT = 1 << 53
_MOST_LEVELS = 200
_MOST_DIGITS = 1 << 20
_ATOMS = (bool, float, str, type(None))
BUILTINS = (*_ATOMS, int, complex, bytes, list, tuple, dict, set, frozenset)
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NotDataError(Exception):
    """The received data does not describe a builtin value."""


def written(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return the value as JSON; `other` gives the JSON of a value that is not of a builtin type.

    >>> written([1, (2.5, "a")], other=id)
    [1, {'t': 'tuple', 'v': [2.5, 'a']}]
    """
    kind = type(value)
    if kind in _ATOMS or (kind is int and -_SAFE_INT < value < _SAFE_INT):
        return value
    if kind is list:
        return [written(item, other) for item in value]
    if kind is int:
        return {"t": "int", "v": hex(value)}
    if kind is bytes:
        return {"t": "bytes", "v": value.hex()}
    if kind is complex:
        return {"t": "complex", "v": [value.real, value.imag]}
    if kind in (tuple, set, frozenset):
        return {"t": kind.__name__, "v": [written(item, other) for item in value]}
    if kind is dict:
        return {
            "t": "dict",
            "v": [[written(key, other), written(item, other)] for key, item in value.items()],
        }
    return other(value)


def made(data: Any, special: Callable[[str, Any], Any], level: int = 0) -> Any:
    """Return the value that parsed JSON describes, or raise NotDataError; `special` gets every other tag."""
    kind = type(data)
    if kind in _ATOMS or kind is int:
        return data
    if level > _MOST_LEVELS:
        raise NotDataError(f"nested more than {_MOST_LEVELS} levels")
    if kind is list:
        return [made(item, special, level + 1) for item in data]
    if kind is not dict or data.keys() != {"t", "v"} or type(data["t"]) is not str:
        raise NotDataError("neither a value nor a tag")
    tag, content = data["t"], data["v"]
    try:
        if tag == "int" and type(content) is str and len(content) < _MOST_DIGITS:
            return int(content, 16)
        if tag == "bytes" and type(content) is str:
            return bytes.fromhex(content)
        if tag == "complex" and [type(part) for part in content] == [float, float]:
            return complex(*content)
        if tag in _CONTAINERS and type(content) is list:
            return _CONTAINERS[tag]([made(item, special, level + 1) for item in content])
        if tag == "dict" and type(content) is list:
            pairs = [[made(part, special, level + 1) for part in pair] for pair in content]
            return {key: item for key, item in pairs}  # noqa: C416 - anything but a pair is refused
    except (TypeError, ValueError) as error:  # a list as a key, text that is not a number
        raise NotDataError(f"not of the type {tag[:40]!r}: {error}") from error
    return special(tag, content)
