"""Two models on many splits of one dataset: splits share images, so their differences are not independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from histobench.core.statistics.jackknife import t_p_value, t_quantile

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
    and other test images.

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
    reach = t_quantile(freedom, level) * error
    nothing_varies = 1.0 if mean == 0 else 0.0
    p_value = nothing_varies if error == 0 else float(t_p_value(mean / error, freedom))
    return MeanOverSplits(mean, mean - reach, mean + reach, p_value)


def five_by_two_f(differences: ArrayLike) -> float:
    """The p-value of Alpaydin's (1999) combined 5x2cv F test; `differences` [5, 2] are repeats x folds.

    >>> round(five_by_two_f([[0.1, 0.12], [0.08, 0.1], [0.11, 0.09], [0.1, 0.1], [0.12, 0.09]]), 5)
    0.00023
    """
    each = np.asarray(differences, dtype=np.float64)
    if each.shape != (5, 2):
        raise ValueError(f"the 5x2cv F test needs 5 repeats of 2 folds, not {each.shape}")
    spread = float(((each - each.mean(axis=1, keepdims=True)) ** 2).sum())
    squares = float((each**2).sum())
    if spread == 0:
        return 1.0 if squares == 0 else 0.0
    return float(stats.f.sf(squares / (2 * spread), 10, 5))
