"""What stands for an object of a submitted program in the process of its tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: (what to do, with which object, arguments) -> the value; raises what the program raised.
Ask = Callable[..., Any]


class RemoteObject:
    """Can be called, indexed, iterated and asked for attributes; each answer comes from the program.

    It never decides a comparison: it equals no value, and has no order and no arithmetic. Only two objects
    of the program are compared by the program, because a test that does so asks about nothing else.
    """

    __slots__ = ("_ask", "_number", "_seen")

    def __init__(self, number: int, ask: Ask, seen: list[str]) -> None:
        self._number = number
        self._ask = ask
        self._seen = seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._ask("attribute", self, name)

    def __getitem__(self, index: Any) -> Any:
        return self._ask("item", self, index)

    def __iter__(self) -> Any:
        return self._ask("iterate", self)

    def __next__(self) -> Any:
        return self._ask("next", self)

    def __len__(self) -> int:
        length = self._ask("length", self)
        return length if type(length) is int else 0

    def __bool__(self) -> bool:
        return bool(self._ask("truth", self))

    def __str__(self) -> str:
        return str(self._ask("text", self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RemoteObject):
            return self._number == other._number or self._ask("equal", self, other) is True
        self._seen.append("compared an object of the program with a value")
        return False

    def __hash__(self) -> int:
        return hash(self._number)


def number_of(value: RemoteObject) -> int:
    """The program's number for the object."""
    return value._number
