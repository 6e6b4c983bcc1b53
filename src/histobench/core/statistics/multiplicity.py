"""Many tests in one table: Holm's step-down correction."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values in the order given; NaN (no test) stays NaN and does not count as a test.

    A difference holds when its adjusted p-value is at most alpha; the chance of any false claim in the
    table is then at most alpha, however the tests depend on each other.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    raw = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * factors))
    return adjusted
