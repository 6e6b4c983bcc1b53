"""Builtin values arrive as they were; data that a program made up is refused or makes builtin values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from histobench.mint.sandbox.guest.plain_values import BUILTINS, NotDataError, made, written

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
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


class Remote:
    """An object of the program."""


def _special(tag: str, content: Any) -> Remote:
    if tag != "object":
        raise NotDataError(tag)
    return Remote()


def _sent(value: Any) -> Any:
    return json.loads(json.dumps(written(value, lambda _: {"t": "object", "v": 0})))


@pytest.mark.slow
@given(VALUES)
@example(7**5000)
@example(-0.0)
@example(float("inf"))
def test_builtin_values_arrive_equal_and_of_the_same_type(value: Any) -> None:
    arrived = made(_sent(value), _special)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


def test_a_subclass_is_not_sent_as_its_base() -> None:
    sly = type("Sly", (int,), {"__eq__": lambda self, other: True, "__hash__": int.__hash__})
    assert _sent([sly(3), 4]) == [{"t": "object", "v": 0}, 4]


TAGS = (
    *("object", "int", "bytes", "tuple", "set", "frozenset"),
    *("dict", "complex", "numpy", "__class__", "eval"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["0x1f", "1_0", "ff", ""])
FORGED = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries({"t": st.sampled_from(TAGS) | inner, "v": inner | st.lists(inner)})
        | st.fixed_dictionaries({"t": st.just("dict"), "v": st.lists(st.tuples(inner, inner).map(list))})
        | st.dictionaries(st.sampled_from(["t", "v", "x"]), inner, max_size=3)
    ),
    max_leaves=15,
)


def _parts(value: Any) -> Any:
    yield value
    for item in value.items() if isinstance(value, dict) else value if _is_container(value) else ():
        yield from _parts(item)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


@pytest.mark.slow
@given(FORGED)
@example({"t": "set", "v": [[1]]})
@example({"t": "dict", "v": [[[1], 2]]})
@example({"t": "complex", "v": [{"t": "object", "v": 0}, 0.0]})
@example({"t": ["tuple"], "v": [1]})
def test_made_up_data_is_refused_or_makes_builtin_values(data: Any) -> None:
    try:
        value = made(data, _special)
    except NotDataError:
        return
    assert all(type(part) in (*BUILTINS, Remote) for part in _parts(value))


OTHER_TYPES = "Fraction Decimal Counter range slice date time timedelta bytearray list pickle numpy eval"


@pytest.mark.parametrize("tag", OTHER_TYPES.split())
def test_tags_of_other_types_are_refused(tag: str) -> None:
    for content in (None, [], [1, 2, 3], ["O", None, [1]], "6/1"):
        with pytest.raises(NotDataError):
            made({"t": tag, "v": content}, _special)


def test_deep_nesting_is_refused() -> None:
    data: Any = 1
    for _ in range(900):
        data = [data]
    with pytest.raises(NotDataError, match="nested"):
        made(data, _special)
