"""Default intervals: the jackknife on a scale on which the metric is closer to normal, with Student's t.

The metric and its values with one unit (patient, slide, image) left out at a time are put on a scale without
bounds: the logit of a share, Fisher's z of a correlation, the logarithm of a loss. There the interval is the
value plus and minus t standard errors; it is mapped back, so it never leaves the range of the metric.

Few units tell their own spread badly, worst where one or two of them carry most of it: a rare class, a few
mistakes, a patient with most images. Three things answer for that, all from the left-out values themselves:

* The degrees of freedom are those of the design, and no more than the fourth moment of the influences allows:
  2 / (sum of fourth powers / square of the sum of squares - 1 / units), Satterthwaite's rule for the variance
  of a variance. One dominant unit gives 2; many units with normal influences give their number.
* Where influences are skewed, the interval reaches further to the side of the long tail, by the first term of
  the Cornish-Fisher expansion of Student's statistic, skewness * (2 t^2 + 1) / 6 standard errors (Hall 1992).
  It is never shortened on the other side.
* Where no unit differs from another there is no spread: the bound of a proportion (`proportion`) holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.statistics.jackknife import LeaveOneOut, t_quantile
from histobench.core.statistics.proportion import wilson_bounds

Floats = NDArray[np.float64]
#: t is not taken with fewer degrees of freedom than this: its quantiles would outrun what the units can show.
LEAST_FREEDOM = 3.0
#: The correlation of images within a group that is assumed where nothing varies and none can be measured.
ASSUMED_CORRELATION = 0.5


@dataclass(frozen=True)
class Scale:
    """A scale without bounds, and the way back. `clip` keeps values half a sample away from the ends."""

    name: str
    forward: Callable[[Floats, float], Floats]  # (values, clip) -> on the scale
    backward: Callable[[Floats], Floats]


def _logit(values: Floats, clip: float) -> Floats:
    return np.asarray(special.logit(np.clip(values, clip, 1 - clip)))


def _fisher(values: Floats, clip: float) -> Floats:
    return np.arctanh(np.clip(values, 2 * clip - 1, 1 - 2 * clip))


def _log(values: Floats, clip: float) -> Floats:
    return np.log(np.maximum(values, 1e-300))


LOGIT = Scale("logit", _logit, special.expit)
#: Of values between 0 and 2 (Brier scores of more than two classes).
HALVED_LOGIT = Scale(
    "halved logit", lambda values, clip: _logit(values / 2, clip), lambda x: 2 * special.expit(x)
)
FISHER = Scale("fisher", _fisher, np.tanh)
LOG = Scale("log", _log, np.exp)


def jackknife_bounds(
    found: LeaveOneOut,
    scale: Scale,
    size: float,
    *,
    effective: float | None = None,
    level: float = 0.95,
    adapt: bool = True,
    long_tailed: bool = False,
    biased: bool = False,
    few_carry: bool = False,
) -> tuple[Floats, Floats]:
    """Bounds of every column of `found`; NaN where a left-out value is undefined.

    `size` is the number of samples behind a value: values are kept half a sample away from the ends of their
    range. `effective` is how many independent samples they are worth; it gives a width to a column without
    spread. `adapt` reads degrees of freedom and skewness from the influences; without it t has the freedom of
    the design. `long_tailed` is for losses, of which a few units carry most: one degree of freedom less, and
    half as much again for the skewness. `biased` is for metrics that small test sets flatter (average
    precision): the interval also reaches as far as the jackknife's estimate of the bias, never less.
    `few_carry` is for areas: where fewer than three units carry the spread, the interval also reaches as far
    as it would without any.

    >>> parts = np.array([[9, 10], [7, 10], [10, 10], [8, 10], [6, 10]], dtype=float)
    >>> from histobench.core.statistics.jackknife import leave_one_out_of_totals
    >>> found = leave_one_out_of_totals(lambda s: s[:, :1] / s[:, 1:], parts, names=["rate"])
    >>> low, high = jackknife_bounds(found, LOGIT, 50)
    >>> round(float(low[0]), 2), round(float(high[0]), 2)
    (0.52, 0.93)
    """
    clip = 0.5 / max(size, 1.0)
    scaled = LeaveOneOut(
        found.names,
        scale.forward(found.values, clip),
        scale.forward(found.left_out, clip),
        found.stratum_of,
        found.freedom,
    )
    influences = scaled.influences()
    squares = np.einsum("um,um->m", influences, influences)
    error = np.sqrt(squares)
    if adapt:
        down, up = student_reach(influences, squares, found.freedom, level, long_tailed=long_tailed)
    else:
        down = up = np.full(len(error), t_quantile(found.freedom, level))
    below, above = down * error, up * error
    if biased:
        bias = (len(influences) - 1) * (scaled.left_out.mean(axis=0) - scaled.values)
        below, above = below + np.maximum(bias, 0.0), above + np.maximum(-bias, 0.0)
    low, high = scale.backward(scaled.values - below), scale.backward(scaled.values + above)
    still = squares <= 1e-18 * np.maximum(1.0, scaled.values**2)
    if few_carry:
        carried = effective_influences(influences) < LEAST_FREEDOM
        edge_low, edge_high = _without_spread(found.values, effective or size, scale, level)
        low, high = (
            np.where(carried, np.fmin(low, edge_low), low),
            np.where(carried, np.fmax(high, edge_high), high),
        )
    if still.any():
        edge_low, edge_high = _without_spread(found.values, effective or size, scale, level)
        low, high = np.where(still, edge_low, low), np.where(still, edge_high, high)
    # The value itself may lie beyond the clip; it is never outside of its own interval.
    return np.minimum(low, found.values), np.maximum(high, found.values)


def effective_size(n: float, group_sizes: NDArray[np.int64] | None) -> float:
    """How many independent samples n samples in groups are worth at `ASSUMED_CORRELATION`."""
    if group_sizes is None:
        return n
    typical = float((group_sizes**2).sum() / group_sizes.sum())
    return n / (1 + ASSUMED_CORRELATION * (typical - 1))


def effective_influences(influences: Floats) -> Floats:
    """How many units of equal influence each column's [u, m] spread is worth; 0 without spread.

    >>> effective_influences(np.array([[1.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])).round(6).tolist()
    [3.0, 1.0]
    """
    squares = (influences**2).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(squares**2 / (influences**4).sum(axis=0)))


def student_reach(
    influences: Floats, squares: Floats, freedom: float, level: float, *, long_tailed: bool = False
) -> tuple[Floats, Floats]:
    """How many standard errors each interval reaches down and up."""
    n = len(influences)
    with np.errstate(divide="ignore", invalid="ignore"):
        fourth = (influences**4).sum(axis=0) / squares**2
        skewness = np.nan_to_num((influences**3).sum(axis=0) / squares**1.5)
        allowed = 2 / np.maximum(fourth - 1 / n, 1e-9)
    fewer = 1.0 if long_tailed else 0.0
    base = t_quantile(max(freedom - fewer, min(LEAST_FREEDOM, n - 1.0) - fewer, 1.0), level)
    allowed = np.clip(np.nan_to_num(allowed, nan=LEAST_FREEDOM), LEAST_FREEDOM, max(n - 1.0, LEAST_FREEDOM))
    both = np.maximum(base, special.stdtrit(allowed, (1 + level) / 2))
    plain = t_quantile(n - 1.0, level)
    weight = 1.5 if long_tailed else 1.0
    long = np.maximum(both, base + weight * np.abs(skewness) * (1 + 2 * plain**2) / 6)
    return np.where(skewness < 0, long, both), np.where(skewness > 0, long, both)


def _without_spread(values: Floats, size: float, scale: Scale, level: float) -> tuple[Floats, Floats]:
    if scale.name == "log":
        return np.full_like(values, np.nan), np.full_like(values, np.nan)
    if scale.name == "fisher":
        low, high = wilson_bounds((values + 1) / 2 * size, size, level=level)
        return 2 * low - 1, 2 * high - 1
    if scale.name == "halved logit":
        low, high = wilson_bounds(values / 2 * size, size, level=level)
        return 2 * low, 2 * high
    return wilson_bounds(values * size, size, level=level)
