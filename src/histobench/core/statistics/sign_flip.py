"""The sign-flip permutation test: between equal models each unit's difference could as well be reversed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
#: Up to this many units all reversals are tried; beyond, as many are drawn.
_EXACT_UNITS = 13
FLIPS = 9999
_NUMBERS_AT_ONCE = 2**24


def sign_flip_p_value(contributions: ArrayLike, *, seed: int = 0) -> float:
    """Two-sided p-value of "the contributions [units] add up to 0", each equally likely with either sign.

    Up to 13 units it is exact (all reversals, the observed one among them); beyond, 9,999 are drawn and the
    observed one is added. With G units it cannot be smaller than 2 / 2^G.

    >>> sign_flip_p_value([1.0, 2.0, 3.0, 4.0])
    0.125
    """
    return float(sign_flip_p_values(np.asarray(contributions, dtype=np.float64)[:, None], seed=seed)[0])


def sign_flip_p_values(contributions: Floats, *, seed: int = 0) -> Floats:
    """`sign_flip_p_value` of every column [units, tests], all with the same reversals."""
    units, tests = contributions.shape
    observed = np.abs(contributions.sum(axis=0))
    least = observed - 1e-12 * np.maximum(1.0, np.abs(contributions).sum(axis=0))
    exact = units <= _EXACT_UNITS
    flips = 2**units if exact else FLIPS
    generator = np.random.default_rng(seed)
    at_least = np.zeros(tests) if exact else np.ones(tests)
    step = max(1, min(1000 if not exact else flips, _NUMBERS_AT_ONCE // max(tests, units, 1)))
    for start in range(0, flips, step):
        rows = min(step, flips - start)
        if exact:
            bits = np.arange(start, start + rows)[:, None] >> np.arange(units) & 1
        else:
            bits = generator.integers(0, 2, (rows, units))
        at_least += (np.abs((1.0 - 2.0 * bits) @ contributions) >= least).sum(axis=0)
    p_values = at_least / (flips if exact else FLIPS + 1)
    return np.asarray(np.where(np.isfinite(observed), p_values, np.nan))
