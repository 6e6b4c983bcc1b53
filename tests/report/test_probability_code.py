"""Sixteen bits are enough: values are close, order is kept, the ends are exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from histobench.report.run_payload import encode
from report.site_data import decode

PROBABILITIES = arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))


@given(PROBABILITIES)
def test_a_decoded_probability_is_close(p: np.ndarray) -> None:
    assert np.abs(decode(encode(p)) - p).max() < 1e-4


@given(PROBABILITIES)
def test_order_is_never_reversed(p: np.ndarray) -> None:
    order = np.argsort(p, kind="stable")
    assert (np.diff(encode(p)[order].astype(np.int64)) >= 0).all()


def test_sure_classifiers_keep_their_order() -> None:
    p = 1 - np.logspace(-8, -3, 200)
    assert len(set(encode(p).tolist())) == 200


def test_zero_one_and_missing_are_exact() -> None:
    found = decode(encode(np.array([0.0, 1.0, np.nan])))
    assert found[:2].tolist() == [0.0, 1.0]
    assert np.isnan(found[2])
