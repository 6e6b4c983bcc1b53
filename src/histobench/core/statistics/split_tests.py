"""Two models on many splits of one dataset: splits share images, so their differences are not independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.core.statistics.jackknife import ROUNDING, t_p_value, t_quantile

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeanOverSplits:
    """A mean over splits with its interval, and the two-sided p-value of "it is 0"."""

    mean: float
    low: float
    high: float
    p_value: float


def corrected_resampled_t(values: ArrayLike, *, test_to_train: float, level: float = 0.95) -> MeanOverSplits:
    """Nadeau and Bengio's (2003) corrected resampled t test of values [J], one of each split.

    Training sets overlap, so the variance of the mean is (1/J + test size / training size) times that of the
    values, not 1/J times; J - 1 degrees of freedom. It is about new data of the same kind: other training
    and other test images. Where the splits do not differ there is no interval, and a p-value only for a mean
    of 0.

    >>> found = corrected_resampled_t([0.02, 0.04, 0.03, 0.05], test_to_train=0.25)
    >>> round(found.mean, 3), round(found.p_value, 3)
    (0.035, 0.031)
    """
    each = np.asarray(values, dtype=np.float64)
    each = each[np.isfinite(each)]
    if len(each) < 2:
        mean = float(each.mean()) if len(each) else float("nan")
        return MeanOverSplits(mean, float("nan"), float("nan"), float("nan"))
    mean, freedom = float(each.mean()), len(each) - 1.0
    error = float(np.sqrt((1 / len(each) + test_to_train) * each.var(ddof=1)))
    if error <= ROUNDING * float(np.abs(each).max()):  # splits that all agree do not show any spread
        return MeanOverSplits(mean, float("nan"), float("nan"), 1.0 if mean == 0 else float("nan"))
    reach = t_quantile(freedom, level) * error
    return MeanOverSplits(mean, mean - reach, mean + reach, float(t_p_value(mean / error, freedom)))
