"""A submitted program in one process, its tests in another: neither shares a name, a frame or a byte.

The program is asked, over the host, for names and for calls, and answers with data, which the host checks.
It sees the arguments of its calls and nothing else of the tests; what it does to its own interpreter stays
there. `serve_program` runs in the one process, everything about `_Program` and `RemoteObject` in the other.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections import deque
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from . import python38_language
from .capture import Capture
from .mailbox import Mailbox
from .memory_reserve import within_memory_limit
from .plain_values import check, made, written

#: Modules that tests may know by a name which the program imported. The name decides which one it is.
_MODULES = {
    name: name
    for name in (
        *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools"),
        *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "time"),
        *("typing", "numpy", "pandas", "scipy", "sympy"),
    )
} | {"np": "numpy", "pd": "pandas", "sp": "sympy", "dt": "datetime", "stats": "scipy.stats"}
#: Errors that end an iteration: only the answer to "next" may be one, or a failing call would end a `map`.
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)


def serve_program(order: dict[str, Any], mailbox: Mailbox, memory: int) -> None:
    """Run the program, then answer what its tests ask until the host ends the process."""
    objects = _Objects()
    names: dict[str, Any] = {}

    def load() -> None:
        exec(_compiled(order["program"], "<submission>", order["wording"]), names)

    with Capture(0):
        with within_memory_limit(memory):
            answer = _attempt(load)
        mailbox.send({"op": "loaded", **answer})
        while True:
            question = mailbox.next_order()
            with within_memory_limit(memory):
                answer = _attempt(lambda: _answer(question, names, objects))  # noqa: B023 - called at once
            mailbox.send({"op": "answer", "number": question.get("number"), **answer})


def run_tests(order: dict[str, Any], mailbox: Mailbox) -> dict[str, Any]:
    """Run the tests; passed means that their last line was reached."""
    seen: list[str] = []
    try:
        with Capture(0):
            tree = ast.parse(order["tests"], "<tests>")
            names = _Names(tree, _Program(mailbox, seen, _attributes_in(tree)))
            exec(_compiled(order["tests"], "<tests>", order["wording"]), names)
    except BaseException as error:
        return {"passed": False, "why": _one_line(error), "objects": bool(seen)}
    return {"passed": True, "why": "", "objects": bool(seen)}


class _Names(dict[str, Any]):
    """The tests' globals; what they do not define themselves is the program's.

    Built-in names are Python's: a program may not bring its own `abs` or `sorted` along. Only tests that use
    no other name than built-in ones mean a function of the program by one (`assert sum(10, 15) == 6`), and
    not by one that judges the results of another (`assert abs(sum(10, 15) - 6) < 1`).
    """

    def __init__(self, tests: ast.Module, program: _Program) -> None:
        super().__init__()
        self._program = program
        used = {node.id for node in ast.walk(tests) if isinstance(node, ast.Name)}
        only_builtins = all(hasattr(builtins, name) for name in used)
        self._python = _judges(tests) if only_builtins else set(dir(builtins))
        self._python |= {"__builtins__", "__name__"}

    def __missing__(self, name: str) -> Any:
        if name in self._python:
            raise KeyError(name)
        found, value = self._program.name(name)
        if not found:
            raise KeyError(name)
        self[name] = value
        return value


def _judges(tests: ast.Module) -> set[str]:
    """The functions that are called with the result of another one."""

    def called_in(node: ast.AST) -> set[str]:
        calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
        return {call.func.id for call in calls if isinstance(call.func, ast.Name)}

    return {
        call.func.id
        for call in ast.walk(tests)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if called_in(call) - {call.func.id}
    }


def _attributes_in(tests: ast.Module) -> frozenset[str]:
    """The public attributes that the tests write down, also as text for `getattr`."""
    names = {node.attr for node in ast.walk(tests) if isinstance(node, ast.Attribute)}
    names |= {
        node.value
        for node in ast.walk(tests)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(name for name in names if name.isidentifier() and not name.startswith("_"))


class RemoteObject:
    """Represents an object of the program; can be called, indexed, iterated and asked for attributes.

    It never decides a comparison: it equals no value, and has no order and no arithmetic. Only two objects
    of the program are compared by the program, because a test that does so asks about nothing else. The
    program is asked for the attributes that the tests' own text names and for no other: what a library looks
    for in its arguments (`__array_interface__`, `_sympy_`, `dtype`) is not there.
    """

    __slots__ = ("_number", "_program")

    def __init__(self, number: int, program: _Program) -> None:
        self._number = number
        self._program = program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in self._program.attributes:
            raise AttributeError(f"the tests do not name the attribute {name!r}")
        return self._program.ask("attribute", self, name)

    def __getitem__(self, index: Any) -> Any:
        return self._program.ask("item", self, index)

    def __iter__(self) -> RemoteObject:
        iterator = self._program.ask("iterate", self)
        if type(iterator) is not RemoteObject:
            raise TypeError("the program's iterator is not one")
        return iterator

    def __next__(self) -> Any:
        return self._program.ask("next", self)

    def __len__(self) -> int:
        length = self._program.ask("length", self)
        return length if type(length) is int else 0

    def __bool__(self) -> bool:
        return self._program.ask("truth", self) is True

    def __str__(self) -> str:
        text = self._program.ask("text", self)
        return text if type(text) is str else ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RemoteObject):
            return self._number == other._number or self._program.ask("equal", self, other) is True
        self._program.seen.append("compared an object of the program with a value")
        return False

    def __hash__(self) -> int:
        return hash(self._number)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of the program cannot be copied")


class _Program:
    """The program as the process of the tests sees it."""

    def __init__(self, mailbox: Mailbox, seen: list[str], attributes: frozenset[str]) -> None:
        self._mailbox = mailbox
        self.seen = seen
        self.attributes = attributes
        self._questions = 0

    def name(self, name: str) -> tuple[bool, Any]:
        """Whether the program has a global of this name, and its value."""
        answer = self._question({"do": "name", "name": name})
        if answer.get("module") is not None:
            if _MODULES.get(name) != answer["module"]:
                return False, None
            return True, importlib.import_module(_MODULES[name])  # this process's own, untouched one
        return answer.get("found") is True, self._value(answer.get("value"))

    def ask(self, action: str, subject: RemoteObject, *args: Any, **kwargs: Any) -> Any:
        """What the program answers; containers that it changed are changed here, too."""
        question = {
            "do": action,
            "object": subject._number,
            "args": [written(arg, self._keep) for arg in args],
            "kwargs": {name: written(arg, self._keep) for name, arg in kwargs.items()},
        }
        answer = self._question(question)
        if "changed" in answer:
            for mine, theirs in zip((*args, *kwargs.values()), self._value(answer["changed"]), strict=False):
                _update(mine, theirs)
        return self._value(answer.get("value"))

    def _value(self, data: Any) -> Any:
        check(data)  # the host did; nothing here depends on that
        return made(data, lambda number: RemoteObject(number, self))

    def _question(self, question: dict[str, Any]) -> dict[str, Any]:
        self._questions += 1
        self._mailbox.send({"op": "ask", "number": self._questions, **question})
        while True:
            answer = self._mailbox.next_order()
            if answer.get("number") == self._questions:
                break
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), None)
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                kind = RuntimeError
            if issubclass(kind, _ENDS) and question["do"] != "next":
                kind = RuntimeError
            raise kind(str(answer.get("message")))
        return answer

    def _keep(self, value: Any) -> int:
        if type(value) is RemoteObject:
            return value._number
        raise TypeError(f"a test cannot hand a {type(value).__name__} to the program: it runs elsewhere")


class _Objects:
    """Objects of the program that the tests know by number."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def keep(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def find(self, number: int) -> Any:
        return self._objects[number]


def _answer(question: dict[str, Any], names: dict[str, Any], objects: _Objects) -> dict[str, Any]:
    action = question["do"]
    if action == "name":
        name = question["name"]
        if name not in names:
            return {"found": False}
        value = names[name]
        if isinstance(value, ModuleType):
            return {"found": True, "module": value.__name__, "value": None}
        return {"found": True, "value": written(value, objects.keep)}
    subject = objects.find(question["object"])
    args = [made(arg, objects.find) for arg in question["args"]]
    kwargs = {name: made(arg, objects.find) for name, arg in question["kwargs"].items()}
    value = _ACTIONS[action](subject, *args, **kwargs)
    answer = {"value": written(value, objects.keep)}
    if action == "call":
        after = [written(arg, objects.keep) for arg in (*args, *kwargs.values())]
        if after != [*question["args"], *question["kwargs"].values()]:
            answer["changed"] = after
    return answer


_ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda subject, *args, **kwargs: subject(*args, **kwargs),
    "attribute": getattr,
    "item": lambda subject, index: subject[index],
    "iterate": iter,
    "next": next,
    "length": len,
    "truth": bool,
    "text": str,
    "equal": lambda subject, other: bool(subject == other),
}


def _update(mine: Any, theirs: Any) -> None:
    """Make a container of the tests what the program made of its copy."""
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, list | bytearray):
        mine[:] = theirs
    elif isinstance(mine, deque):
        mine.clear()
        mine.extend(theirs)
    elif hasattr(mine, "dtype"):
        if (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape):
            mine[...] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def _attempt(work: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    try:
        return work() or {}
    except BaseException as error:
        known = (
            kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind
        )
        return {"error": next(known, "RuntimeError"), "message": _text(error), "why": _one_line(error)}


def _compiled(source: str, name: str, wording: str) -> CodeType:
    tree: str | ast.Module = source
    if wording == "python3.8":
        python38_language.use_old_library()
        tree = python38_language.as_python38(ast.parse(source, name))
        python38_language.refuse_newer_strings(source, name)
    # dont_inherit: this file's own future statements are not the submission's.
    return compile(tree, name, "exec", dont_inherit=True)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"[:500]


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except BaseException:
        return ""
