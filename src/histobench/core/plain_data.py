"""YAML and JSON that people hand in: read within bounds, whatever stands in it, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from histobench.core.errors import HistobenchError, did_you_mean

T = TypeVar("T")

#: More levels than any file of ours has, and few enough for recursive code.
_DEEPEST = 40
#: Values when everything that YAML's aliases repeat is counted each time.
_MOST_VALUES = 200_000


def read_yaml(text: str, *, where: str, loader: Any = None) -> Any:
    """The plain values of a YAML text; `where` begins every error."""
    import yaml

    try:
        value = yaml.load(text, Loader=loader or yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        raise HistobenchError(
            f"{place}: not valid YAML: {_short(getattr(error, 'problem', None) or error)}"
        ) from error
    except RecursionError:
        raise _too_deep(where) from None
    except (ValueError, OverflowError, TypeError) as error:  # numbers and dates that are none
        raise HistobenchError(f"{where} holds a value that cannot be read: {_short(error)}") from error
    return _bounded(value, where)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """As `json.loads`, but what is nested too deep to be read is a ValueError like all that is no JSON."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(text: str, *, where: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The plain values of a JSON text; `where` begins every error, `pairs` is json's `object_pairs_hook`."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise HistobenchError(f"{where}:{error.lineno}: not valid JSON: {error.msg}") from error
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:  # a number of more digits than Python reads
        raise HistobenchError(f"{where} holds a value that cannot be read: {_short(error)}") from error
    return _bounded(value, where)


def _bounded(value: Any, where: str) -> Any:
    """The value, if it is neither deeper nor, with all repetitions, larger than anything we read."""
    sizes: dict[int, int] = {}  # of values that are known from beginning to end
    open_: set[int] = set()

    def size(item: Any, depth: int) -> int:
        if not isinstance(item, dict | list):
            return 1
        if id(item) in open_ or depth > _DEEPEST:
            raise _too_deep(where)
        if id(item) not in sizes:
            open_.add(id(item))
            parts = [*item, *item.values()] if isinstance(item, dict) else item
            sizes[id(item)] = 1 + sum(size(part, depth + 1) for part in parts)
            open_.discard(id(item))
        return sizes[id(item)]

    if size(value, 1) > _MOST_VALUES:
        raise HistobenchError(
            f"{where} holds more than {_MOST_VALUES:,} values when its aliases are followed"
        )
    return value


def _too_deep(where: str) -> HistobenchError:
    return HistobenchError(f"{where} is nested more than {_DEEPEST} levels deep, or in itself")


def _short(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:160]}..."


# Entries of hand-written files as frozen dataclasses: the types of the fields say what is allowed.

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    tuple: ((list,), "a list of texts"),
    Mapping: ((Mapping,), "fields (key: value)"),
}


def read_fields(kind: type[T], entry: Any, where: str, **known: Any) -> T:
    """A dataclass from a mapping of a file; `known` are fields that the mapping does not give.

    The `metadata` of a field may hold `key` (its name in the file), `words` (the allowed ones) and `read`, a
    function of a mapping and its place. Whole numbers are positive. In a mapping of dataclasses the keys are
    their names. Each error names the place and the field.
    """
    if not isinstance(entry, Mapping):
        raise HistobenchError(f"{where}: expected fields (key: value), found {type(entry).__name__}")
    made: type = kind
    values, keys = dict(known), []
    for each, hint in _typed_fields(made):
        if each.name in known:
            continue
        key = each.metadata.get("key", each.name)
        keys.append(key)
        if key in entry:
            values[each.name] = _field_value(entry[key], hint, each.metadata, where, key)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise HistobenchError(f"{where}: the field {key!r} is missing")
    for extra in entry:
        if extra not in keys:
            raise HistobenchError(f"{where}: unknown field {str(extra)!r}; {did_you_mean(str(extra), keys)}")
    return kind(**values)


@cache
def _typed_fields(kind: Any) -> list[tuple[Field[Any], Any]]:
    """Fields with their types, those that may be None as if they could not: a file leaves them out."""
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        parts = [part for part in get_args(hints[each.name]) if part is not type(None)]
        optional = type(None) in get_args(hints[each.name])
        found.append((each, parts[0] if optional else hints[each.name]))
    return found


def _field_value(value: Any, hint: Any, said: Mapping[str, Any], where: str, key: str) -> Any:
    if hint is Any:
        return value
    kind = Mapping if is_dataclass(hint) else get_origin(hint) or hint
    inner: Any = (get_args(hint) or (None,))[-1 if kind is Mapping else 0]
    types, what = _KINDS[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if fits and kind is tuple and inner is str:
        fits = all(isinstance(item, str) for item in value)
    if not fits:
        raise HistobenchError(f"{where}: {key} must be {what}, found {value!r}")
    place, of_entries = f"{where}: {key}", bool(is_dataclass(inner))
    if kind is Mapping and inner is None:
        return said["read"](value, place) if "read" in said else read_fields(hint, value, place)
    if kind is tuple:
        return tuple(read_fields(inner, item, place) if of_entries else item for item in value)
    if kind is Mapping and of_entries:
        named = any(each.name == "name" for each in fields(inner))
        return {
            name: read_fields(inner, item, f"{place}: {name}", **({"name": name} if named else {}))
            for name, item in value.items()
        }
    if kind is str:
        value = value.strip()
        if "words" in said and value not in said["words"]:
            raise HistobenchError(f"{place} is {value!r}; {did_you_mean(value, said['words'])}")
    if kind is int and value < 1:
        raise HistobenchError(f"{place} must be positive, found {value}")
    return float(value) if kind is float else dict(value) if kind is Mapping else value
