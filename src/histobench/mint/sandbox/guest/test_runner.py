"""Tests of a submitted program, run in a process that never ran a line of it.

The program is asked for names and calls over the host; it sees the arguments of its calls alone.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import pickle
from typing import Any

from .cell_limits import Capture
from .frames import Channel
from .plain_values import BUILTINS, NotDataError, made, written
from .tested_program import error_text

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


def run_tests(order: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Run the tests; passed means that their last line was reached and every answer was data."""
    try:
        with Capture(0):
            tree = ast.parse(order["tests"], "<tests>")
            program = _Program(channel, _attributes_in(tree))
            names = _Names(tree, program, _functions_of(order["helpers"]))
            exec(compile(order["tests"], "<tests>", "exec", dont_inherit=True), names)
            if program.broken:
                raise NotDataError(program.broken)
    except BaseException as error:
        why = f"{type(error).__name__}: {error_text(error)}"[:500]
        return {"passed": False, "why": why}
    return {"passed": True, "why": ""}


def _functions_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "<task>", "exec", dont_inherit=True), names)
    return {
        node.name: names[node.name] for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }


class _Names(dict[str, Any]):
    """The tests' globals; what they do not define themselves is the program's.

    Functions of the task are the task's, whatever the program calls by their names. Built-in names are
    Python's: a program may not bring its own `abs` or `sorted` along. Only tests that use no name
    but built-in ones mean a function of the program by one (`assert sum(10, 15) == 6`), and not by one that
    judges the results of another (`assert abs(sum(10, 15) - 6) < 1`).
    """

    def __init__(self, tests: ast.Module, program: _Program, helpers: dict[str, Any]) -> None:
        super().__init__()
        self._program = program
        self._helpers = helpers
        used = {node.id for node in ast.walk(tests) if isinstance(node, ast.Name)}
        only_builtins = all(hasattr(builtins, name) for name in used)
        self._python = _judges(tests) if only_builtins else set(dir(builtins))
        self._python |= {"__builtins__", "__name__"}

    def __missing__(self, name: str) -> Any:
        if name in self._python:
            raise KeyError(name)
        found, value = (True, self._helpers[name]) if name in self._helpers else self._program.name(name)
        if not found:
            raise KeyError(name)
        self[name] = value
        return value


def _judges(tests: ast.Module) -> set[str]:
    """Return the functions that are called with the result of another one."""

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
    """Return the public attributes that the tests write down, also as text for `getattr`."""
    names = {node.attr for node in ast.walk(tests) if isinstance(node, ast.Attribute)}
    names |= {
        node.value
        for node in ast.walk(tests)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(name for name in names if name.isidentifier() and not name.startswith("_"))


class RemoteObject:
    """Represents an object of the program; can be called, indexed, iterated and asked for attributes.

    It never decides a comparison with a value: its text, as `repr` gives it, is compared here with that of
    the value, which the program does not know. It has no order and no arithmetic. Two objects of the program
    are compared by the program, because a test that does so asks about nothing else. The program is asked for
    the attributes that the tests' own text names, so what a library looks for in its arguments
    (`__array_interface__`, `_sympy_`, `dtype`) is not there.
    """

    __slots__ = ("_number", "_program")

    def __init__(self, number: int, program: _Program) -> None:
        self._number = number
        self._program = program

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._program.ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in self._program.attributes:
            raise AttributeError(f"the tests do not name the attribute {name!r}")
        return self._program.ask("attribute", self, name)

    def __getitem__(self, index: Any) -> Any:
        return self._program.ask("item", self, index)

    def __iter__(self) -> Any:
        return self._program.ask("iterate", self)

    def __next__(self) -> Any:
        return self._program.ask("next", self)

    def __len__(self) -> Any:
        return self._program.ask("length", self)

    def __bool__(self) -> bool:
        return self._program.ask("truth", self) is True

    def __str__(self) -> Any:
        return self._program.ask("text", self)

    def __repr__(self) -> Any:
        return self._program.ask("shown", self)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, RemoteObject):
            return self._number == other._number or self._program.ask("equal", self, other) is True
        kind = type(other)
        # An object that equals a builtin value was sent as that value; arrays compare item by item.
        if kind in BUILTINS or kind.__eq__ is object.__eq__ or hasattr(kind, "__array__"):
            return NotImplemented
        return True if self._program.ask("shown", self) == repr(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._number)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of the program cannot be copied")


class _Program:
    def __init__(self, channel: Channel, attributes: frozenset[str]) -> None:
        self._channel = channel
        self.attributes = attributes
        self.broken = ""  # an answer was not data: the tests have failed, whatever they catch
        self._questions = 0

    def name(self, name: str) -> tuple[bool, Any]:
        answer = self._question({"do": "name", "name": name})
        if answer.get("module") is not None:
            if _MODULES.get(name) != answer["module"]:
                return False, None
            return True, importlib.import_module(_MODULES[name])  # this process's own, untouched one
        return answer.get("found") is True, self._value(answer.get("value"))

    def ask(self, action: str, subject: RemoteObject, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the program answers; lists, dicts and sets that it changed are changed here, too."""
        question = {
            "do": action,
            "object": self._sent(subject),
            "args": [written(arg, self._sent) for arg in args],
            "kwargs": {name: written(arg, self._sent) for name, arg in kwargs.items()},
        }
        answer = self._question(question)
        if "changed" in answer:
            for mine, theirs in zip((*args, *kwargs.values()), self._value(answer["changed"]), strict=False):
                _update(mine, theirs)
        return self._value(answer.get("value"))

    def _value(self, data: Any) -> Any:
        def special(tag: str, content: Any) -> RemoteObject:
            if tag != "object" or type(content) is not int or content < 0:
                raise NotDataError(f"no value has the tag {tag[:40]!r}")
            return RemoteObject(content, self)

        try:
            return made(data, special)
        except NotDataError as error:
            self.broken = f"the program returned data that cannot be decoded: {error}"
            raise NotDataError(self.broken) from error

    def _question(self, question: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise NotDataError(self.broken)
        self._questions += 1
        self._channel.send({"op": "ask", "number": self._questions, **question})
        while True:
            answer = self._channel.receive()
            if answer.get("number") == self._questions:
                break
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), None)
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                kind = RuntimeError
            if issubclass(kind, _ENDS) and question["do"] != "next":
                kind = RuntimeError
            text = str(answer.get("message"))
            # A Unicode error is made of five values, which are not sent.
            raise kind.__new__(kind, text) if issubclass(kind, UnicodeError) else kind(text)
        return answer

    def _sent(self, value: Any) -> Any:
        """Return the number of the program's own object, or a packed value for the program to unpack."""
        if type(value) is RemoteObject:
            return {"t": "object", "v": value._number}
        try:
            return {"t": "pickle", "v": pickle.dumps(value).hex()}
        except Exception as error:
            kind = type(value).__name__
            raise TypeError(
                f"a test cannot pass a {kind} to the program: it runs in another process"
            ) from error


def _update(mine: Any, theirs: Any) -> None:
    if type(mine) is type(theirs):
        if type(mine) is list:
            mine[:] = theirs
        elif type(mine) in (dict, set):
            mine.clear()
            mine.update(theirs)
