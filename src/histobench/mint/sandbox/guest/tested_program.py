"""A submitted program answers what its tests ask. It can change this process: it decides nothing."""

from __future__ import annotations

import builtins
import numbers
import pickle
from collections import UserString
from collections.abc import Callable, Mapping, Sequence, Set
from types import ModuleType
from typing import Any

from .cell_limits import Capture, memory_limit
from .frames import Channel
from .plain_values import NotDataError, made, written

#: How to make the builtin value that a value of these types may equal.
_BUILTIN: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((str, UserString), "".join),
    ((bytes, bytearray), bytes),
    (tuple, tuple),
    (frozenset, frozenset),
    (Set, set),
    (Mapping, dict),
    (Sequence, list),
    (numbers.Integral, int),
    (numbers.Real, float),
    (numbers.Complex, complex),
    (numbers.Number, float),
)


def serve_program(order: dict[str, Any], channel: Channel, memory: int) -> None:
    """Run the program, then answer what its tests ask until the host ends the process."""
    objects = _Objects()
    names: dict[str, Any] = {}

    def load() -> None:
        for source in order["sources"]:
            # dont_inherit: this file's own future statements are not the submission's.
            exec(compile(source, "<submission>", "exec", dont_inherit=True), names)

    with Capture(0):
        with memory_limit(memory):
            answer = _attempt(load)
        channel.send({"op": "loaded", **answer})
        while True:
            question = channel.receive()
            with memory_limit(memory):
                answer = _attempt(lambda: _answer(question, names, objects))  # noqa: B023 - called at once
            channel.send({"op": "answer", "number": question.get("number"), **answer})


class _Objects:
    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def sent(self, value: Any) -> Any:
        """Return the data of the builtin value that equals `value`, or its number."""
        plain = _builtin(value)
        if plain is not value:
            return written(plain, self.sent)
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return {"t": "object", "v": number}

    def received(self, tag: str, content: Any) -> Any:
        if tag == "object":
            return self._objects[content]
        if tag == "pickle":
            return pickle.loads(bytes.fromhex(content))
        raise NotDataError(tag)


def _builtin(value: Any) -> Any:
    """Return the builtin value that equals `value`; `value` itself if there is none."""
    try:
        of_numpy = getattr(type(value), "__module__", "") == "numpy"
        if of_numpy and hasattr(value, "item") and not hasattr(value, "__len__"):
            plain = value.item()
            return value if type(plain) is type(value) else plain
        for kind, make in _BUILTIN:
            if isinstance(value, kind):
                plain = make(value)
                return plain if type(plain) is not type(value) and (plain == value) is True else value
    except Exception:
        pass
    return value


def _answer(question: dict[str, Any], names: dict[str, Any], objects: _Objects) -> dict[str, Any]:
    action = question["do"]
    if action == "name":
        if question["name"] not in names:
            return {"found": False}
        value = names[question["name"]]
        if isinstance(value, ModuleType):
            return {"found": True, "module": value.__name__, "value": None}
        return {"found": True, "value": written(value, objects.sent)}
    subject = made(question["object"], objects.received)
    args = [made(arg, objects.received) for arg in question["args"]]
    kwargs = {name: made(arg, objects.received) for name, arg in question["kwargs"].items()}
    given = [*args, *kwargs.values()]
    before = written(given, objects.sent)
    answer = {"value": written(_ACTIONS[action](subject, *args, **kwargs), objects.sent)}
    after = written(given, objects.sent)
    return answer if after == before else answer | {"changed": after}


_ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda subject, /, *args, **kwargs: subject(*args, **kwargs),
    "attribute": getattr,
    "item": lambda subject, index: subject[index],
    "iterate": iter,
    "next": next,
    "length": len,
    "truth": bool,
    "text": str,
    "equal": lambda subject, other: bool(subject == other),
    "shown": repr,
}


def _attempt(work: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    try:
        return work() or {}
    except BaseException as error:
        known = (
            kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind
        )
        text = error_text(error)
        why = f"{type(error).__name__}: {text}"[:500]
        return {"error": next(known, "RuntimeError"), "message": text, "why": why}


def error_text(error: BaseException) -> str:
    """Return what an exception says, which may be anything, in 2,000 characters."""
    try:
        return str(error)[:2000]
    except BaseException:
        return ""
