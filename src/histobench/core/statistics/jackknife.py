"""The jackknife: what leaving out one unit (a patient, a slide, an image) at a time tells about a metric.

    leave_one_out(evaluate, design)          metrics as functions of counts [b, n], as for the bootstrap
    leave_one_out_of_totals(metric, parts)   metrics of sums over units (confusion matrices, sums of losses)
    LeaveOneOut(names, values, left_out, stratum_of, freedom)         where the values are known already

A `LeaveOneOut` holds m columns (metrics of one model, or one metric of m models on the same units): `values`
[m] on everything and `left_out` [u, m] with unit u left out. From it follow

    .covariance() [m, m], .variance() [m]     sum over strata of (G - 1) / G times the squared deviations of
                                              the left-out values from their mean within the stratum
    .influences() [u, m]                      deviations scaled so that influences.T @ influences is the
                                              covariance; influence of a linear combination of columns is the
                                              same combination of influences
    .freedom                                  degrees of freedom of the variances
    .mapped(function)                         the same on another scale (logit, log, Fisher's z)
    t_quantile(freedom, level), t_p_value(t, freedom)          Student's t; normal for infinite freedom
    differences(found, level=...)             every pair of columns: difference, error, interval and p-value
    pair_errors(found)                        the differences and standard errors [m, m] that these use

Interval and p-value of a difference come from one quantity: the interval at `level` excludes 0 exactly when
the p-value is below 1 - level. Leaving out a unit without which a column is undefined (the only patient of
a class) gives NaN for that column's variance: no statement rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from histobench.core.statistics.intervals import most_unseen
from histobench.core.statistics.resampling import (
    Evaluate,
    SamplingDesign,
    jackknife_of_all,
    jackknife_strata,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Deviations below this share of the values are rounding errors, not spread.
ROUNDING = 1e-12
#: With fewer effective degrees of freedom a spread says nothing: no interval and no p-value.
FEWEST_DEGREES = 2.0


@dataclass(frozen=True)
class LeaveOneOut:
    """m columns on all units [m], and with each unit left out [u, m]."""

    names: tuple[str, ...]
    values: Floats  # [m]
    left_out: Floats  # [u, m]
    stratum_of: Ints  # [u], strata as codes from 0 on
    freedom: float

    @cached_property
    def _influences(self) -> Floats:
        sizes = np.bincount(self.stratum_of)
        scaled = np.zeros_like(self.left_out)
        for stratum, size in enumerate(sizes):
            if size < 2:
                continue  # a stratum of one unit shows no spread, as in a stratified bootstrap
            members = self.stratum_of == stratum
            rows = self.left_out[members]
            apart = rows.mean(axis=0) - rows
            rounding = np.abs(apart) <= ROUNDING * np.abs(rows).max(axis=0)
            scaled[members] = ((size - 1) / size) ** 0.5 * np.where(rounding, 0.0, apart)
        return scaled

    def influences(self) -> Floats:
        """Scaled deviations [u, m] whose squares add up to the variances."""
        return self._influences

    @cached_property
    def _covariance(self) -> Floats:
        covariance: Floats = self._influences.T @ self._influences
        covariance.flags.writeable = False
        return covariance

    def covariance(self) -> Floats:
        """The jackknife covariance of the columns [m, m]; NaN where a left-out value is undefined."""
        return self._covariance

    def variance(self) -> Floats:
        """The jackknife variance of each column [m]."""
        return np.einsum("um,um->m", self._influences, self._influences)

    def mapped(self, function: Callable[[Floats], Floats]) -> LeaveOneOut:
        """The same on another scale: `function` is applied to every value."""
        return replace(self, values=function(self.values), left_out=function(self.left_out))

    def columns(self, names: Sequence[str]) -> LeaveOneOut:
        """Only these columns, in this order."""
        places = [self.names.index(name) for name in names]
        return replace(
            self, names=tuple(names), values=self.values[places], left_out=self.left_out[:, places]
        )


@dataclass(frozen=True)
class PairedDifferences:
    """Every pair of columns in the order of `itertools.combinations`: first - second."""

    first: NDArray[np.intp]  # [pairs], places among the columns
    second: NDArray[np.intp]
    difference: Floats
    standard_error: Floats
    low: Floats
    high: Floats
    p_value: Floats  # two-sided; NaN where the variance is undefined


def leave_one_out(evaluate: Evaluate, design: SamplingDesign, *, max_blocks: int = 1000) -> LeaveOneOut:
    """Every metric of `evaluate` with each unit left out; more than `max_blocks` units go in equal blocks.

    >>> from histobench.core.statistics.resampling import sampling_design
    >>> x = np.array([1.0, 2.0, 6.0])
    >>> found = leave_one_out(lambda w: {"mean": w @ x / w.sum(axis=1)}, sampling_design(3))
    >>> round(float(found.variance()[0]), 6) == round(float(x.var(ddof=1) / 3), 6)
    True
    """
    observed = evaluate(np.ones((1, design.n_samples), dtype=np.int32))
    left_out = jackknife_of_all(evaluate, design, max_blocks=max_blocks)
    return LeaveOneOut(
        names=tuple(observed),
        values=np.array([float(values[0]) for values in observed.values()]),
        left_out=np.stack([left_out[name] for name in observed], axis=1),
        stratum_of=jackknife_strata(design, max_blocks=max_blocks),
        freedom=design.degrees_of_freedom,
    )


def leave_one_out_of_totals(
    metric: Callable[[Floats], Floats],
    parts: ArrayLike,
    *,
    names: Sequence[str],
    stratum_of: ArrayLike | None = None,
    freedom: float | None = None,
) -> LeaveOneOut:
    """Columns that follow from sums over units: `parts` [u, ...] of each unit, `metric` [b, ...] -> [b, m].

    >>> right_of_all = [[3, 4], [1, 4], [2, 4]]
    >>> found = leave_one_out_of_totals(lambda s: s[:, :1] / s[:, 1:], right_of_all, names=["rate"])
    >>> found.values, found.left_out[:, 0]
    (array([0.5]), array([0.375, 0.625, 0.5  ]))
    """
    each = np.asarray(parts, dtype=np.float64)
    total = each.sum(axis=0, keepdims=True)
    strata = np.zeros(len(each), dtype=np.int64) if stratum_of is None else np.asarray(stratum_of)
    return LeaveOneOut(
        names=tuple(names),
        values=np.asarray(metric(total), dtype=np.float64)[0],
        left_out=np.asarray(metric(total - each), dtype=np.float64),
        stratum_of=strata,
        freedom=len(each) - 1.0 if freedom is None else freedom,
    )


def t_quantile(freedom: float, level: float = 0.95) -> float:
    """How many standard errors a two-sided interval reaches to either side."""
    share = (1 + level) / 2
    return float(special.ndtri(share) if np.isinf(freedom) else special.stdtrit(freedom, share))


def t_p_value(t: ArrayLike, freedom: float) -> Floats:
    """The two-sided p-value of each t statistic."""
    tail = -np.abs(np.asarray(t, dtype=np.float64))
    return np.asarray(2 * (special.ndtr(tail) if np.isinf(freedom) else special.stdtr(freedom, tail)))


def pair_errors(
    found: LeaveOneOut, *, level: float = 0.95, floor: Floats | None = None
) -> tuple[Floats, Floats]:
    """Differences row - column [m, m], and the standard error of each lower bound [m, m].

    The standard error of the upper bound of row - column is that of the lower bound of column - row. `floor`
    [m, m] is the least standard error of each, NaN where there shall be none. Units without spread do not
    prove a difference either:

    * Columns that never differ may differ on as large a share of unseen units as `most_unseen` allows.
    * A difference that every unit shows alike has the p-value of the sign test, 2 / 2^units.
    """
    difference = found.values[:, None] - found.values[None, :]
    covariance = found.covariance()
    spread = np.diag(covariance)
    together = spread[:, None] + spread[None, :]
    variance = np.maximum(together - 2 * covariance, 0.0)
    size = found.values**2
    rounding = np.maximum(ROUNDING * together, ROUNDING**2 * (size[:, None] + size[None, :]))
    still = variance <= rounding
    same = np.abs(difference) <= ROUNDING * (1 + np.abs(found.values))
    difference = np.where(same, 0.0, difference)
    freedom = max(found.freedom, 1e-9)
    by_sign = max(-float(special.stdtrit(freedom, max(0.5**freedom, 1e-15) / 2)), 1e-9)
    unseen = most_unseen(max(len(found.left_out), 1), level=level) / t_quantile(freedom, level)
    error = np.where(still, np.abs(difference) / by_sign, np.sqrt(variance))
    unknown = still & same if floor is None else still & same & ~(floor > 0)
    error = np.where(unknown, unseen, error)
    if floor is not None:
        error = np.maximum(error, floor)
    np.fill_diagonal(error, 0.0)
    return difference, error


def differences(
    found: LeaveOneOut, *, level: float = 0.95, floor: Floats | None = None, span: float = np.inf
) -> PairedDifferences:
    """Every pair of columns by the untransformed jackknife-t; `pair_errors` says what holds without spread.

    `floor` [m, m] is the least standard error of each pair; bounds lie within -span and span.
    """
    first, second = np.triu_indices(len(found.values), 1)
    difference, error = pair_errors(found, level=level, floor=floor)
    difference, down, up = difference[first, second], error[first, second], error[second, first]
    if not found.freedom >= FEWEST_DEGREES:
        nothing = np.full_like(difference, np.nan)
        return PairedDifferences(first, second, difference, nothing, nothing, nothing, nothing)
    reach = t_quantile(found.freedom, level)
    towards = np.where(difference > 0, down, up)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = np.where(difference == 0, 1.0, t_p_value(difference / towards, found.freedom))
    p_value = np.where(np.isfinite(towards), p_value, np.nan)
    low = np.maximum(difference - reach * down, -span)
    high = np.minimum(difference + reach * up, span)
    return PairedDifferences(first, second, difference, towards, low, high, p_value)
