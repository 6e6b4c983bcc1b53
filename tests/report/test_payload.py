"""Data files say what was put in, and never become anything but data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from histobench.report.payload import packed, rounded, script
from report.site_data import unpacked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(key=st.text(), value=VALUES)
def test_what_is_written_is_read_back_and_holds_no_markup(key: str, value: object) -> None:
    text = script(key, value)
    assert text.isascii()
    assert not set("<>&\u2028") & set(text)
    arguments = text.removeprefix("histobench.receive(").removesuffix(");\n")
    assert json.loads(f"[{arguments}]") == [key, value]


def test_numbers_that_are_none_are_null() -> None:
    assert script("key", [1.0, float("nan")]) == 'histobench.receive("key",[1.0,null]);\n'


@given(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers_survive_packing(values: np.ndarray) -> None:
    found = packed(values)
    assert unpacked(found).tolist() == values.tolist()


def test_small_numbers_take_one_byte_each() -> None:
    found = packed(np.arange(90).reshape(9, 10))
    assert found["type"] == "uint8"
    assert unpacked(found).shape == (9, 10)


def test_too_large_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        packed(np.array([2**40]))


def test_rounding_keeps_the_leading_digits() -> None:
    assert rounded(0.00001234567) == 1.23457e-05
    assert rounded(None) is None
    assert rounded(float("inf")) is None
