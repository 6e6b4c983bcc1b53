"""YAML and JSON that people hand in: read within bounds, whatever stands in it, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from histobench.core.errors import HistobenchError

#: The largest whole number that tables can hold, and so the largest seed.
LARGEST = 2**63 - 1
#: More levels than any file of ours has, and few enough for whoever walks through them.
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
