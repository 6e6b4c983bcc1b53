"""The verdict on a submitted program, decided where no byte of the program becomes an object of its choice.

Tests that only compare results with constants, as nearly all do, are read here: the program is asked, and its
answers are compared as data in this process. Other tests run in a process that never ran a line of the
program and was not forked from the same parent; what reaches it are values that this process has checked.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import decimal
import fractions
import itertools
import json
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from histobench.mint.sandbox.code_session import Session
from histobench.mint.sandbox.guest.frames import BrokenFrameError, LongMessageError
from histobench.mint.sandbox.guest.plain_values import NotDataError, checked_answer, made, written
from histobench.mint.sandbox.limits import Deadline, next_message
from histobench.mint.sandbox.sandbox_pool import SandboxPool

_ASKED = ("number", "do", "name", "object", "args", "kwargs")


@dataclass(frozen=True)
class Verdict:
    """Whether the tests passed; if not, why.

    `unearned`: the tests failed on an object of the program in the place of a value. Where program and tests
    shared one interpreter, such an object could claim to equal everything.
    """

    passed: bool
    reason: str = ""
    unearned: bool = False


def run_unit_tests(
    pool: SandboxPool, code: str, tests: str, *, timeout: float = 10.0, wording: str = "native"
) -> Verdict:
    """Run `code` in a fresh session and ask it what `tests` ask; passed means that the last test was reached.

    Arguments go there, results come back as plain data, which this process checks and, where the tests allow
    it, compares by itself. The program never sees the tests, and nothing that it does to its interpreter
    reaches them. Program and tests have `timeout` seconds each. `wording="python3.8"` refuses what the Python
    of the published recordings did not have.
    """
    assertions = read_assertions(tests)
    with contextlib.ExitStack() as sessions:

        def side(session: Session) -> _Side:
            sessions.callback(session.close)
            return _Side(session, pool, timeout)

        try:
            program = side(pool.take())
            program.send({"op": "program", "program": code, "wording": wording})
            loaded = program.receive()
            if loaded.get("op") != "loaded" or "error" in loaded:
                return _failed(loaded.get("why"))
            if assertions is not None:
                return _compared(program, assertions)
            return _tested(program, side(pool.take_for_tests()), tests, wording)
        except (LongMessageError, _EndedError) as error:
            return _failed(error)


def _failed(reason: object, *, unearned: bool = False) -> Verdict:
    """The reason is as long as a line, and half a surrogate pair, which no file takes, is written out."""
    return Verdict(False, str(reason)[:500].encode("utf-8", "backslashreplace").decode(), unearned)


class _Side:
    """One of the two sessions. Its clock runs only while it is waited for."""

    def __init__(self, session: Session, pool: SandboxPool, timeout: float) -> None:
        self._session = session
        self._channel = session.open()
        self._deadline = Deadline(timeout, pid=session.pid, patience=timeout * pool.limits.patience)
        self._timeout = timeout
        self._paused_at = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except (ConnectionError, RecursionError) as error:
            raise _EndedError(self._why()) from error

    def receive(self, *, checked: bool = False) -> dict[str, Any]:
        """The next message (`checked`: an answer of data alone), or `_EndedError` with the reason."""
        self._deadline.extend(time.monotonic() - self._paused_at)
        try:
            message = next_message(self._channel, self._deadline)
            if checked:
                message = checked_answer(message)  # on the clock of whoever made it long
            if self._deadline.passed():
                raise TimeoutError
        except TimeoutError:
            raise _EndedError(f"still running after {self._timeout:g} seconds") from None
        except (EOFError, OSError) as error:
            raise _EndedError(self._why()) from error
        except BrokenFrameError as error:
            raise _EndedError("the process broke its connection") from error
        except NotDataError as error:
            raise _EndedError(f"the program answered with something that is no value: {error}") from error
        self._paused_at = time.monotonic()
        return message

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The program's checked answer to one question."""
        self.send(question | {"op": "ask"})
        return self.receive(checked=True)

    def _why(self) -> str:
        return self._session.why_it_ended() or "the process ended before the tests did"


class _EndedError(Exception):
    """One of the sessions has ended, or has to."""


def _tested(program: _Side, tester: _Side, tests: str, wording: str) -> Verdict:
    """The tests run in a session of their own, which asks the program over this process."""
    tester.send({"op": "tests", "tests": tests, "wording": wording})
    while (message := tester.receive()).get("op") == "ask":
        answer = program.ask({key: message[key] for key in _ASKED if key in message})
        tester.send(answer | {"op": "answer", "number": message.get("number")})
    if message.get("op") == "verdict" and message.get("passed") is True:
        return Verdict(True)
    return _failed(message.get("why"), unearned=message.get("objects") is True)


@dataclass(frozen=True)
class Assertion:
    """`assert function(*args, **kwargs) == constant` and its like; arguments are written as data."""

    function: str  # "" where the condition asks nothing
    args: list[Any]
    kwargs: dict[str, Any]
    holds: Callable[[Any], bool]  # for the data of an answer
    message: str


def _compared(program: _Side, assertions: list[Assertion]) -> Verdict:
    functions: dict[str, dict[str, Any]] = {}
    for assertion in assertions:
        data, name = None, assertion.function
        if name:
            if name not in functions:
                functions[name] = program.ask({"do": "name", "name": name})
            if refusal := _why_not_callable(name, functions[name]):
                return _failed(refusal)
            question = {"do": "call", "object": functions[name]["value"]["v"]}
            answer = program.ask(question | {"args": assertion.args, "kwargs": assertion.kwargs})
            if "error" in answer:
                return _failed(f"{answer['error']}: {answer.get('message', '')}")
            data = answer.get("value")
        if not assertion.holds(data):
            return _failed(f"AssertionError: {assertion.message}", unearned=_has_object(data))
    return Verdict(True)


def _why_not_callable(name: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{found['error']}: {found.get('message', '')}"
    if found.get("found") is not True:
        return f"NameError: name {name!r} is not defined"
    value = found.get("value")
    is_object = "module" not in found and type(value) is dict and value["t"] == "object"
    return "" if is_object else f"TypeError: {name!r} is not a function"


# -- Tests that only compare results with constants --------------------------------------------------------

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LARGEST_OPERAND = 1e15


class _OtherTestError(Exception):
    """The tests need Python to run."""


def read_assertions(tests: str) -> list[Assertion] | None:
    """The assertions in their order if the tests are nothing but comparisons of results with constants.

    None where they are more than that; the tests alone decide it, no program can.
    """
    try:
        return list(_assertions_of(ast.parse(tests)))
    except (
        _OtherTestError,
        SyntaxError,
        ValueError,
        TypeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ):
        return None


def _assertions_of(tree: ast.Module) -> Iterator[Assertion]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    only_builtins = all(hasattr(builtins, name) for name in used)
    own: set[str] = set()
    checks: dict[str, ast.FunctionDef] = {}

    def program_name(node: ast.expr, candidate: str, stands_for: str) -> str:
        _need(isinstance(node, ast.Name))
        name: str = stands_for if node.id == candidate else node.id  # type: ignore[attr-defined]
        _need(
            name not in own and not name.startswith("__") and (only_builtins or not hasattr(builtins, name))
        )
        return name

    def read(statement: ast.Assert, candidate: str = "", stands_for: str = "") -> Assertion:
        # Evaluated once the assertion has failed, so that it decides nothing.
        message = str(statement.msg.value) if isinstance(statement.msg, ast.Constant) else ""
        call, holds = _condition(statement.test, python_abs=not only_builtins and "abs" not in own)
        if call is None:
            return Assertion("", [], {}, holds, message)
        kwargs = {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords}
        _need(all(keyword.arg for keyword in call.keywords))
        name = program_name(call.func, candidate, stands_for)
        return Assertion(name, [_argument(arg) for arg in call.args], kwargs, holds, message)

    for node in tree.body:
        match node:
            case ast.Assert():
                yield read(node)
            case ast.FunctionDef(decorator_list=[], args=ast.arguments(args=[ast.arg()])) if _is_plain(node):
                own.add(node.name)
                checks[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _constant(value)
                own.add(name)
                checks.pop(name, None)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[argument], keywords=[])):
                _need(name in checks)
                function = program_name(argument, "", "")
                for statement in checks[name].body:
                    if isinstance(statement, ast.Assert):
                        yield read(statement, checks[name].args.args[0].arg, function)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                raise _OtherTestError


def _is_plain(function: ast.FunctionDef) -> bool:
    """Whether the function has one ordinary parameter and consists of assertions."""
    spec = function.args
    has_more = spec.posonlyargs or spec.kwonlyargs or spec.vararg or spec.kwarg or spec.defaults
    return not has_more and all(
        isinstance(node, ast.Assert | ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in function.body
    )


def _condition(test: ast.expr, *, python_abs: bool) -> tuple[ast.Call | None, Callable[[Any], bool]]:
    """The call whose result is judged, and the judgment of its data."""
    match test:
        case ast.Constant(value=value):
            return None, lambda _: bool(value)
        case ast.Compare(left=ast.Call() as call, ops=[ast.Is()], comparators=[ast.Constant(value=value)]):
            _need(value is None or type(value) is bool)
            return call, lambda data: data is value
        case ast.Compare(
            left=ast.Call(
                func=ast.Name(id="abs"),
                args=[ast.BinOp(left=ast.Call() as call, op=ast.Sub(), right=center)],
                keywords=[],
            ),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[width],
        ):
            middle, most = _constant(center), _constant(width)
            _need(python_abs and all(type(part) in (int, float) for part in (middle, most)))
            below = operator.lt if isinstance(test.ops[0], ast.Lt) else operator.le
            return call, lambda data: _is_near(data, middle, most, below)
        case ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[constant]):
            expected = _constant(constant)
            return call, lambda data: equals(data, expected)
        case _:
            raise _OtherTestError


def _need(condition: object) -> None:
    if not condition:
        raise _OtherTestError


def _constant(node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            operands = _constant(left), _constant(right)
            _need(all(type(side) in (int, float) and abs(side) < _LARGEST_OPERAND for side in operands))
            _need(type(op) in _ARITHMETIC)
            return _ARITHMETIC[type(op)](*operands)
        case ast.List(elts=items):
            return [_constant(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_constant(item) for item in items)
        case ast.Set(elts=items):
            return {_constant(item) for item in items}
        case ast.Dict(keys=keys, values=values):
            _need(None not in keys)
            return {_constant(key): _constant(item) for key, item in zip(keys, values, strict=True) if key}
        case _:
            value = ast.literal_eval(node)
            _need(value is not Ellipsis)
            return value


def _argument(node: ast.expr) -> Any:
    def no_object(value: object) -> int:
        raise _OtherTestError

    return written(_constant(node), no_object)


# -- Data compared by Python's rules; only numbers, and checked arrays of them, become values ----------------

_MAPPINGS = ("dict", "Counter", "OrderedDict")
_SETS = ("set", "frozenset", "keys", "items")
_LARGEST_EXPONENT = 400  # constants are floats, or integers that somebody wrote down
_unequal = itertools.count()


def equals(data: Any, expected: Any) -> bool:
    """Whether the value of checked `data` equals a constant, as `assert value == expected` would find.

    >>> equals([1, {"t": "tuple", "v": [True]}], [1.0, (1,)])
    True
    """
    tag, content = _parts(data)
    if tag == "numpy":
        return _array_equals(data, expected)
    if isinstance(expected, list):
        return tag == "list" and _items_equal(content, expected)
    if isinstance(expected, tuple):
        return tag == "tuple" and _items_equal(content, expected)
    if isinstance(expected, dict):
        if tag not in _MAPPINGS:
            return False
        theirs = {_key(key): item for key, item in content}
        own = {_key(written(key, id)): item for key, item in expected.items()}
        return theirs.keys() == own.keys() and all(equals(theirs[key], own[key]) for key in own)
    return _key(data) == _key(written(expected, id))


def _items_equal(items: list[Any], expected: list[Any] | tuple[Any, ...]) -> bool:
    return len(items) == len(expected) and all(map(equals, items, expected))


def _array_equals(data: dict[str, Any], expected: Any) -> bool:
    """NumPy compares item by item, by rules of its own, and only one result has a truth value."""
    import numpy

    if len(data["v"][2]) != 1 or not isinstance(expected, int | float | complex | list | tuple):
        return False
    try:
        with numpy.errstate(all="ignore"):
            result = numpy.asarray(made(data, int) == expected)
    except (TypeError, ValueError, ArithmeticError):
        return False
    return result.size == 1 and bool(result.item())


def _key(data: Any) -> str:
    """A text that two values have in common exactly if Python finds them equal."""
    tag, content = _parts(data)
    if tag == "None":
        return "None"
    if tag == "str":
        return json.dumps(content)
    if tag in ("bytes", "bytearray"):
        return f"b{content}"
    if tag in ("tuple", "list"):
        return f"{tag}({','.join(map(_key, content))})"
    if tag in _SETS:
        members = (_key({"t": "tuple", "v": item}) if tag == "items" else _key(item) for item in content)
        return f"set({','.join(sorted(set(members)))})"
    number = _number(data)
    return f"unequal{next(_unequal)}" if number is None else _number_key(number)


def _number_key(number: Any) -> str:
    if isinstance(number, complex):
        if number.imag:
            return f"complex({_number_key(number.real)},{_number_key(number.imag)})"
        number = number.real
    if isinstance(number, decimal.Decimal):
        # Also a signaling NaN, which must not be compared, and numbers that only a Decimal can have.
        if number.is_nan() or (number.is_finite() and number and abs(number.adjusted()) > _LARGEST_EXPONENT):
            return f"unequal{next(_unequal)}"
    elif number != number:
        return f"unequal{next(_unequal)}"
    if number in (float("inf"), float("-inf")):
        return f"{float(number)}"
    numerator, denominator = number.as_integer_ratio()
    return f"{numerator:x}/{denominator:x}"


def _number(data: Any) -> Any:
    """The plain number of the data, None where it is no number."""
    tag, content = _parts(data)
    match tag:
        case "bool" | "int" | "float":
            return content
        case "complex":
            return complex(*content)
        case "Fraction":
            return fractions.Fraction(*(_number(part) for part in content))
        case "Decimal":
            return decimal.Decimal(content[0])
        case "numpy":
            return _number(content[2][0]) if len(content[2]) == 1 else None
        case _:
            return None


def _is_near(data: Any, middle: float, most: float, below: Callable[[Any, Any], bool]) -> bool:
    import numpy

    try:
        # A number of NumPy is subtracted with its own precision and range.
        number = made(data, int) if _parts(data)[0] == "numpy" else _number(data)
        with numpy.errstate(all="ignore"):
            found = below(abs(number - middle), most)
            return numpy.size(found) == 1 and bool(found)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _parts(data: Any) -> tuple[str, Any]:
    """The type's name and the content of checked data."""
    if type(data) is dict:
        return data["t"], int(data["v"], 16) if data["t"] == "int" else data["v"]
    return "None" if data is None else type(data).__name__, data


def _has_object(data: Any) -> bool:
    if type(data) is dict:
        return data["t"] == "object" or _has_object(data["v"])
    return type(data) is list and any(map(_has_object, data))
