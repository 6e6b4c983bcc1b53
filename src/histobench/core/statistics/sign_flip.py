"""The sign-flip permutation test: between equal models each unit's difference could as well be reversed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

#: Up to this many units all reversals are tried; beyond, as many are drawn.
_EXACT_UNITS = 13
FLIPS = 9999


def sign_flip_p_value(contributions: ArrayLike, *, seed: int = 0) -> float:
    """Two-sided p-value of "the contributions [units] add up to 0", each equally likely with either sign.

    Up to 13 units it is exact (all reversals, the observed one among them); beyond, 9,999 are drawn and the
    observed one is added. With G units it cannot be smaller than 2 / 2^G.

    >>> sign_flip_p_value([1.0, 2.0, 3.0, 4.0])
    0.125
    """
    parts = np.asarray(contributions, dtype=np.float64)
    if not np.isfinite(parts).all():
        return float("nan")
    observed = abs(parts.sum())
    margin = 1e-12 * max(1.0, float(np.abs(parts).sum()))
    if len(parts) <= _EXACT_UNITS:
        bits = np.arange(2 ** len(parts))[:, None] >> np.arange(len(parts)) & 1
        sums = np.abs((1 - 2 * bits) @ parts)
        return float((sums >= observed - margin).mean())
    generator = np.random.default_rng(seed)
    at_least = 1
    for start in range(0, FLIPS, 1000):
        signs = 1 - 2 * generator.integers(0, 2, (min(1000, FLIPS - start), len(parts)))
        at_least += int((np.abs(signs @ parts) >= observed - margin).sum())
    return at_least / (FLIPS + 1)
