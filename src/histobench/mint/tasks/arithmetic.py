"""Evaluates the arithmetic in an answer without ever running it as code."""

from __future__ import annotations

import ast
import math
import operator
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from histobench.core.text import parse_python

MAX_LENGTH = 2000
MAX_NODES = 400
#: Of a power, and of any whole number on the way to the value.
MAX_BITS = 4096
MAX_STEP_BITS = 4 * MAX_BITS

_filters = threading.Lock()
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


def _round(number: Any, digits: Any = None) -> Any:
    """Python's, without the power of ten that it makes for places in front of every whole number here."""
    if isinstance(number, int) and isinstance(digits, int) and digits < -MAX_STEP_BITS:
        return 0
    return round(number, digits)


#: What the benchmark's own namespace offered (its `eval` saw Python's built-ins).
BUILT_INS: Mapping[str, Callable[..., Any]] = {"round": _round, "abs": abs, "int": int, "float": float}
#: What a person means by these names in an answer.
MATHEMATICS: Mapping[str, Any] = {
    **BUILT_INS,
    "pi": math.pi,
    "e": math.e,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "ln": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "factorial": lambda n: math.factorial(n) if 0 <= n <= 200 else math.inf,
    "comb": lambda n, k: math.comb(n, k) if 0 <= k <= n <= 1000 else math.inf,
    "math.pow": math.pow,
    "math.sqrt": math.sqrt,
    "math.pi": math.pi,
}


class NotArithmeticError(Exception):
    """The text is not an expression of numbers, strings, lists and the known names."""


def evaluate(text: str, names: Mapping[str, Any] = BUILT_INS) -> Any:
    """The value of an arithmetic expression or a Python literal.

    >>> evaluate("3 * 10 ** 2"), evaluate("(1, 2.5)"), evaluate("True")
    (300, (1, 2.5), True)
    """
    if len(text) > MAX_LENGTH:
        raise NotArithmeticError("too long")
    try:
        # Python warns its authors of "3and 4"; here no one wrote a program. Filters are the whole process's.
        with _filters, warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            # Leading blanks are no indentation here, as in Python's own eval.
            tree = parse_python(text.lstrip(" \t"), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotArithmeticError(str(error)) from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise NotArithmeticError("too long")
    try:
        return _value(tree.body, names)
    except NotArithmeticError:
        raise
    except Exception as error:  # division by zero, overflow, a list plus a number, ...
        raise NotArithmeticError(f"{type(error).__name__}: {error}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements):
            return [_value(element, names) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element, names) for element in elements)
        case ast.Set(elts=elements):
            return {_value(element, names) for element in elements}
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, names), _value(right, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _small(_BINARY[type(op)](*_numbers(_value(left, names), _value(right, names))))
        case ast.Name() | ast.Attribute():
            name = ast.unparse(node)
            if name in names and not callable(names[name]):
                return names[name]
        case ast.Call(func=function, args=arguments, keywords=[]):
            name = ast.unparse(function)
            if callable(names.get(name)):
                return _small(names[name](*(_value(argument, names) for argument in arguments)))
    raise NotArithmeticError(f"{ast.unparse(node)[:40]!r} is not arithmetic")


def _numbers(left: Any, right: Any) -> tuple[Any, Any]:
    # "ab" * 10**9 and [0] * 10**9 are not arithmetic either.
    if not isinstance(left, int | float | complex) or not isinstance(right, int | float | complex):
        raise NotArithmeticError("an operation on something that is not a number")
    return left, right


def _small(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_STEP_BITS:
        raise NotArithmeticError("a number too large")
    return value


def _power(base: Any, exponent: Any) -> Any:
    base, exponent = _numbers(base, exponent)
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent > 0 and base.bit_length() * exponent > MAX_BITS:
        raise NotArithmeticError("a power too large")
    return base**exponent
