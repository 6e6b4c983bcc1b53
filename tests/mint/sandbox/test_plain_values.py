"""What passes between a program and its tests arrives as it was, or not as a value at all."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.mint.sandbox.guest.plain_values import made, written

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
    | st.datetimes()
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

    return made(json.loads(json.dumps(written(value, no_object))), no_object)


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
