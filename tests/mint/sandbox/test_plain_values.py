"""What passes between a program and its tests arrives as it was, or not as a value at all."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import json
import types
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import assume, example, given
from hypothesis import strategies as st

from histobench.mint.sandbox.guest.plain_values import NotDataError, check, made, written
from histobench.mint.sandbox.unit_test_runs import equals, read_assertions

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes().map(lambda moment: moment.replace(fold=0))
    | st.timedeltas()
)
HASHABLE = st.recursive(
    ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=12,
)


def carried(value: Any) -> Any:
    """There and through JSON, as the host passes it on."""

    def no_object(value: Any) -> int:
        raise AssertionError(f"{value!r} is data")

    data = json.loads(json.dumps(written(value, no_object)))
    check(data)
    return made(data, no_object)


@pytest.mark.slow
@given(VALUES)
def test_data_arrives_equal_and_of_the_same_type(value: Any) -> None:
    arrived = carried(value)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


@pytest.mark.parametrize(
    "value",
    [
        collections.Counter("aab"),
        collections.OrderedDict([(2, 1), (1, 2)]),
        collections.deque([1, 2]),
        {1: 2}.keys(),
        {1: 2}.items(),
        range(1, 9, 2),
        bytearray(b"ab"),
        fractions.Fraction(2, 3),
        decimal.Decimal("0.10"),
        datetime.time(1, 2),
        -0.0,
        float("inf"),
        7**5000,
        np.float64(0.1),
        np.int8(3),
        np.bool_(True),
    ],
    ids=repr,
)
def test_well_known_types_arrive_as_what_they_were(value: Any) -> None:
    arrived = carried(value)
    assert type(arrived) is type(value)
    assert arrived == value
    assert repr(arrived) == repr(value)


def test_arrays_arrive_with_shape_and_type() -> None:
    for array in (
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.array(2.5),
        np.array([1 + 2j]),
        np.zeros((0, 2)),
    ):
        arrived = carried(array)
        assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
        assert np.array_equal(arrived, array)


def test_a_subclass_that_decides_what_it_equals_is_no_value() -> None:
    class Sly(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            return True

    class Honest(int):
        pass

    kept: list[object] = []

    def keep(value: object) -> int:
        kept.append(value)
        return len(kept) - 1

    assert written([Sly(3), Honest(4)], keep) == [{"t": "object", "v": 0}, 4]
    assert type(kept[0]) is Sly


#: What right programs return: each equals the constant beside it, or does not, as Python says.
UNUSUAL: list[tuple[Any, Any]] = [
    (type("L", (list,), {"__iter__": lambda self: iter("x")})([1, 2]), [1, 2]),
    (type("T", (tuple,), {})((1, 2)), (1, 2)),
    (type("D", (dict,), {"keys": lambda self: []})(a=1), {"a": 1}),
    (type("S", (set,), {})({1}), {1}),
    (type("I", (int,), {"__int__": lambda self: 7})(6), 6),
    (type("F", (float,), {"__float__": lambda self: 7.0})(6.0), 6),
    (type("B", (bytes,), {})(b"ab"), b"ab"),
    (enum.Enum("Color", {"red": "r"}, type=str).red, "r"),  # type: ignore[attr-defined]
    (enum.IntEnum("Size", {"small": 3}).small, 3),  # type: ignore[attr-defined]
    (collections.UserList([1]), [1]),
    (collections.UserDict(a=1), {"a": 1}),
    (collections.UserString("ab"), "ab"),
    (collections.ChainMap({"a": 1}), {"a": 1}),
    (types.MappingProxyType({"a": 1}), {"a": 1}),
    (collections.defaultdict(int, a=1), {"a": 1}),
    (np.array(["ab"])[0], "ab"),
    (np.bytes_(b"ab"), b"ab"),
    (np.longdouble(6), 6),
    ({np.str_("a"): (np.int64(1), [np.float64(2)])}, {"a": (1, [2.0])}),
    (sympy.factorial(3), 6),
    (sympy.Rational(1, 2), 0.5),
    (sympy.Float(6), 6),
    (sympy.Float(6), 6.0),
    (sympy.pi, 3.141592653589793),
    ("\ud83d\ude00", "\U0001f600"),
    (datetime.datetime(2000, 1, 1, fold=1), 1),
]


@pytest.mark.parametrize(("value", "constant"), UNUSUAL, ids=lambda value: f"{type(value).__name__}")
def test_unusual_types_equal_what_python_says(value: Any, constant: Any) -> None:
    data = json.loads(json.dumps(written(value, lambda _: 0)))
    check(data)
    strict = isinstance(value, sympy.Float)  # equals 6.0 and not 6, which no plain number does
    assert equals(data, constant) == (bool(value == constant) and not strict)


def test_numbers_of_numpy_are_subtracted_with_their_own_precision() -> None:
    for value, middle, most in ((np.float32(0.1), 0.1, 1e-9), (np.uint8(0), 1, 2), (np.array([2.5]), 2, 1)):
        (assertion,) = read_assertions(f"assert abs(f(1) - {middle}) < {most}") or []
        with np.errstate(over="ignore"):
            assert assertion.holds(written(value, id)) == bool(abs(value - middle) < most)
    assert not assertion.holds(written(np.array([2.0, 2.0]), id))
    assert not assertion.holds(written(np.zeros(0), id))


# -- Data that a program made up -----------------------------------------------------------------------------

TAGS = (
    *("object", "int", "bytes", "bytearray", "tuple", "set", "frozenset", "deque", "keys", "dict", "Counter"),
    *("OrderedDict", "items", "numpy", "complex", "range", "slice", "Fraction", "Decimal", "date", "time"),
    *("datetime", "timedelta", "list", "O", "__class__", "eval", ""),
)
KINDS = ("b1", "i1", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16", "O", "|O8", "V8", "S1", "M8[s]", "f8,O")
WORDS = st.sampled_from(
    ["0x1f", "-0x3", "0x", "1_0", "ff", "f", "", "1E+5", "NaN", "1/2", "Infinity", *KINDS]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | WORDS
)
FORGED = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries({"t": st.sampled_from(TAGS), "v": inner | st.lists(inner, max_size=4)})
        | st.fixed_dictionaries(
            {"t": st.just("numpy"), "v": st.tuples(st.sampled_from(KINDS), inner, st.lists(inner)).map(list)}
        )
        | st.fixed_dictionaries(
            {
                "t": st.sampled_from(["dict", "Counter", "OrderedDict", "items"]),
                "v": st.lists(st.tuples(inner, inner).map(list), max_size=3),
            }
        )
        | st.dictionaries(st.sampled_from(["t", "v", "x"]), inner, max_size=3)
    ),
    max_leaves=15,
)
PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict),
    *(collections.deque, collections.Counter, collections.OrderedDict, type({}.keys()), type({}.items())),
    *(range, slice, fractions.Fraction, decimal.Decimal),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta),
)


NEAR = [
    *(read_assertions("assert abs(f(1) - 2) < 1e-6") or []),
    *(read_assertions("assert abs(f(1) - .5) <= 1") or []),
]


class Remote:
    """Fails whatever it is asked, as an object that answers no special name must be able to."""

    def __init__(self, number: int) -> None:
        assert type(number) is int
        assert number >= 0


def parts(value: Any) -> Any:
    yield value
    if isinstance(value, dict | type({}.items())):
        pairs = value.items() if isinstance(value, dict) else value
        for key, item in pairs:
            yield from parts(key)
            yield from parts(item)
    elif isinstance(value, list | tuple | set | frozenset | collections.deque | type({}.keys())):
        for item in value:
            yield from parts(item)


@pytest.mark.slow
@given(FORGED)
@example({"t": "numpy", "v": ["O", None, [{"t": "object", "v": 0}]]})
@example({"t": "numpy", "v": ["f8", [1], [{"t": "object", "v": 0}]]})
@example({"t": "Fraction", "v": [{"t": "object", "v": 0}, 1]})
@example({"t": "Decimal", "v": ["sNaN"]})
@example({"t": "set", "v": [{"t": "Decimal", "v": ["-NaN7"]}]})
@example({"t": "set", "v": [{"t": "Decimal", "v": ["sNaN"]}]})
@example({"t": "Decimal", "v": ["1E+999999999999999999"]})
@example({"t": "Decimal", "v": ["-Infinity"]})
@example({"t": "Decimal", "v": ["1.5E-999999999999999999"]})
@example({"t": "set", "v": [{"t": "Decimal", "v": ["99E+999999999999999999"]}]})
@example({"t": "numpy", "v": ["f8", [2147483647, 2147483647, 2147483647, 0], []]})
@example({"t": "numpy", "v": ["f2", [1], [1e300]]})
@example({"t": "numpy", "v": ["f4", [1], [0.1]]})
def test_made_up_data_is_refused_or_makes_plain_values(data: Any) -> None:
    try:
        check(data)
    except NotDataError:
        return
    for constant in (0, 1.5, 2j, "a", b"a", None, [1], (1,), {1}, {1: 2}):
        assert equals(data, constant) in (True, False)
    for assertion in NEAR:
        assert assertion.holds(data) in (True, False)
    try:
        value = made(data, Remote)
    except (ValueError, OverflowError):  # a date or a time that does not exist
        return
    for part in parts(value):
        if isinstance(part, np.ndarray | np.generic):
            assert part.dtype.kind in "biufc"
            assert type(part) is np.ndarray or type(part).__module__ == "numpy"
        else:
            assert type(part) in (*PLAIN, Remote)


@pytest.mark.slow
@given(VALUES, st.data())
def test_a_change_of_written_data_is_refused_or_makes_plain_values(value: Any, draw: Any) -> None:
    """Starts from real data, so that the mutations are near the border."""
    data = json.loads(json.dumps(written(value, id)))
    places = [(None, None)]

    def collect(node: Any) -> None:
        for key in range(len(node)) if isinstance(node, list) else sorted(node):
            places.append((node, key))
            if isinstance(node[key], list | dict):
                collect(node[key])

    if isinstance(data, list | dict):
        collect(data)
    node, key = draw.draw(st.sampled_from(places))
    if node is None:
        data = draw.draw(FORGED)
    else:
        node[key] = draw.draw(FORGED | st.sampled_from(TAGS))
    test_made_up_data_is_refused_or_makes_plain_values.hypothesis.inner_test(data)


NUMBERS = (
    st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.sampled_from([0.5, -0.0, 1e300])
)
CONSTANT_KEYS = NUMBERS | st.none() | st.text(max_size=2) | st.binary(max_size=2) | st.complex_numbers()
CONSTANTS = st.recursive(
    CONSTANT_KEYS | st.tuples(CONSTANT_KEYS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(CONSTANT_KEYS, inner, max_size=3)
        | st.sets(CONSTANT_KEYS, max_size=3)
    ),
    max_leaves=6,
)
#: The same value of other types: equal, nearly always.
DISGUISES: list[Any] = [
    lambda value: value,
    lambda value: float(value),
    lambda value: int(value),
    lambda value: complex(value),
    lambda value: fractions.Fraction(value),
    lambda value: decimal.Decimal(value),
    lambda value: np.float64(value),
    lambda value: np.float32(value),
    lambda value: np.int64(value),
    lambda value: np.array([value]),
    lambda value: list(value),
    lambda value: tuple(value),
    lambda value: frozenset(value),
    lambda value: dict.fromkeys(value).keys(),
    lambda value: collections.OrderedDict(value),
    lambda value: collections.Counter(value),
    lambda value: collections.deque(value),
    lambda value: bytearray(value),
]


@pytest.mark.slow
@given(CONSTANTS, CONSTANTS, st.sampled_from(DISGUISES), st.booleans())
@example({1: [2.0]}, None, DISGUISES[0], True)
@example(0.1, None, DISGUISES[7], True)
@example([16777217.0], None, lambda value: np.float32(value), True)
@example(float(1 << 53), (1 << 53) + 1, np.int64, False)
def test_data_equals_a_constant_when_python_says_so(
    expected: Any, other: Any, disguise: Any, same: bool
) -> None:
    try:
        value = disguise(expected if same else other)
        if type(value) is bytearray:
            assume(len(value) < 1000)
    except (TypeError, ValueError, ArithmeticError):
        value = other
    assume(not isinstance(value, np.ndarray) or value.dtype.kind in "biufc")
    data = json.loads(json.dumps(written(value, id)))
    check(data)
    try:
        with np.errstate(all="ignore"):
            truth = bool(made(data, Remote) == expected)
    except (ValueError, OverflowError):  # an array of several truths, a number beyond its type
        truth = False
    assert equals(data, expected) == truth


@pytest.mark.parametrize(
    "tests",
    [
        "assert f(1) == 2",
        "assert f([1, (2, 3)], key={'a': {1}}) == {'b': -1.5}, 'message'",
        "def check(candidate):\n    assert candidate(3 * 19) == [3, 19]\n    assert True\ncheck(f)",
        "METADATA = {'a': 1}\ndef check(c):\n    assert c(1) is True, 'no: ' + str(c(1))\n\ncheck(f)",
        "assert abs(f(1) - 2.0 / 3.0) < 1e-6",
        "assert sum(1, 2) == 3",
    ],
)
def test_comparisons_with_constants_are_read_in_the_host(tests: str) -> None:
    assert read_assertions(tests)


@pytest.mark.parametrize(
    "tests",
    [
        "x = f(1)\nassert x == 1",
        "assert f(g(1)) == 2",
        "assert sorted(f(1)) == [1]",
        "assert f(1) == 2 == 2",
        "assert f(1) in (1, 2)",
        "assert f(*[1]) == 2",
        "assert f(**{'a': 1}) == 2",
        "assert f(1) == ...",
        "assert f(1) is 5",
        "def f(x): return 2\nassert f(1) == 2",
        "def check(c):\n    assert c(1) == 2",
        "def check(c=1):\n    assert c(1) == 2\ncheck(f)",
        "@g\ndef check(c):\n    assert c(1) == 2\ncheck(f)",
        "def check(c):\n    assert c(1) == 2\ncheck = 1\ncheck(f)",
        "abs = 1\nassert abs(f(1) - 2) < 1",
        "assert list(1) == f",
        "for n in (1, 2):\n    assert f(n) == n",
        "assert f(9 ** 9 ** 9) == 1",
        "assert (",
        "assert " + "(" * 5000,
    ],
)
def test_other_tests_are_not_read_in_the_host(tests: str) -> None:
    """A test that asks nothing counts as read: it defines a function and calls none."""
    assert not read_assertions(tests)
