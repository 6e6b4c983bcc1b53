"""Data files say what was put in, never become anything but data, and keep the order of probabilities."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from histobench.report.payload import packed, rounded, script
from histobench.report.run_payload import encode
from report.site_data import decode, unpacked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@settings(max_examples=30)
@given(key=st.text(), value=VALUES)
def test_what_is_written_is_read_back_and_holds_no_markup(key: str, value: object) -> None:
    text = script(key, value)
    assert text.isascii()
    assert not set("<>&\u2028") & set(text)
    arguments = text.removeprefix("histobench.receive(").removesuffix(");\n")
    assert json.loads(f"[{arguments}]") == [key, value]


@given(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers_survive_packing(values: np.ndarray) -> None:
    assert unpacked(packed(values)).tolist() == values.tolist()


def test_numbers_are_small_and_rounded_and_missing_ones_are_null() -> None:
    assert script("key", [1.0, float("nan")]) == 'histobench.receive("key",[1.0,null]);\n'
    found = packed(np.arange(90).reshape(9, 10))
    assert (found["type"], unpacked(found).shape) == ("uint8", (9, 10))
    with pytest.raises(ValueError, match="32 bits"):
        packed(np.array([2**40]))
    assert rounded(0.00001234567) == 1.23457e-05
    assert (rounded(None), rounded(float("inf"))) == (None, None)


PROBABILITIES = arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))


@given(PROBABILITIES)
def test_a_decoded_probability_is_close_and_order_is_never_reversed(p: np.ndarray) -> None:
    codes = encode(p)
    assert np.abs(decode(codes) - p).max() < 1e-4
    assert (np.diff(codes[np.argsort(p, kind="stable")].astype(np.int64)) >= 0).all()


def test_sure_classifiers_keep_their_order_and_the_ends_are_exact() -> None:
    assert len(set(encode(1 - np.logspace(-8, -3, 200)).tolist())) == 200
    np.testing.assert_array_equal(decode(encode(np.array([0.0, 1.0, np.nan]))), [0.0, 1.0, np.nan])
