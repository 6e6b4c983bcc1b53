"""Frozen dataclasses as plain values, and back: what one process has worked out for another, bit for bit."""

from __future__ import annotations

import base64
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Restore = Callable[[Any], Any]


def as_plain(value: Any) -> Any:
    """A value of dataclasses, tuples, dicts with names, arrays and scalars, for JSON.

    A dataclass becomes the list of its fields, an array its bytes; what is not a number stays so, too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return [as_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return [data.dtype.str, list(data.shape), base64.b64encode(data.tobytes()).decode("ascii")]
    return value.item() if isinstance(value, np.generic) else value


def from_plain(kind: type[T], plain: Any) -> T:
    """The dataclass that `as_plain` was given; a ValueError where it was another."""
    try:
        restored: T = _restorer(kind)(plain)  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    return restored


@cache
def _restorer(kind: Any) -> Restore:
    """What makes a value of this type; found out once, for a table has thousands of them."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        parts = [_restorer(hints[field.name]) for field in fields(kind)]
        make: Callable[..., Any] = kind  # type: ignore[assignment]
        return lambda plain: make(*(part(item) for part, item in zip(parts, plain, strict=True)))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        return _array
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _restorer(arguments[0])
        return lambda plain: tuple(map(each, plain))
    if origin is tuple:
        every = [_restorer(argument) for argument in arguments]
        return lambda plain: tuple(part(item) for part, item in zip(every, plain, strict=True))
    if origin is dict:
        held = _restorer(arguments[1])
        return lambda plain: {key: held(item) for key, item in plain.items()}
    if origin in (typing.Union, types.UnionType):  # something, or None
        (some,) = (argument for argument in arguments if argument is not type(None))
        inner = _restorer(some)
        return lambda plain: None if plain is None else inner(plain)
    return lambda plain: plain


def _array(plain: Any) -> NDArray[Any]:
    kind, shape, data = plain
    return np.frombuffer(base64.b64decode(data), dtype=np.dtype(kind)).reshape(shape)
