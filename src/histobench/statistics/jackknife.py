"""The jackknife over units (patients, slides, images): variances, logit-t intervals, crossed designs.

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

from histobench.statistics.intervals import most_unseen, wilson_bounds
from histobench.statistics.resampling import Evaluate, SamplingDesign, jackknife_of_all, jackknife_strata

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Deviations below this share of the values are rounding errors, not spread.
ROUNDING = 1e-12
#: With fewer effective degrees of freedom a spread says nothing: no interval and no p-value.
FEWEST_DEGREES = 2.0


@dataclass(frozen=True)
class LeaveOneOut:
    """m columns (metrics of one model, or one metric of m models) on all units, and with each left out."""

    names: tuple[str, ...]
    values: Floats  # [m]
    left_out: Floats  # [u, m]
    stratum_of: Ints  # [u], strata as codes from 0 on
    freedom: float  # degrees of freedom of the variances

    @classmethod
    def unstratified(
        cls, names: tuple[str, ...], values: Floats, left_out: Floats, *, freedom: float | None = None
    ) -> LeaveOneOut:
        """Units of one stratum; unless given, the freedom is one less than there are units."""
        strata = np.zeros(len(left_out), dtype=np.int64)
        return cls(names, values, left_out, strata, len(left_out) - 1.0 if freedom is None else freedom)

    @cached_property
    def influences(self) -> Floats:
        """Scaled deviations [u, m] whose squares add up to the variances."""
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

    @cached_property
    def covariance(self) -> Floats:
        """The jackknife covariance of the columns [m, m]; NaN where a left-out value is undefined."""
        covariance: Floats = self.influences.T @ self.influences
        covariance.flags.writeable = False
        return covariance

    @property
    def variance(self) -> Floats:
        """The jackknife variance of each column [m]."""
        return np.einsum("um,um->m", self.influences, self.influences)

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
    low: Floats
    high: Floats
    p_value: Floats  # two-sided; NaN where the variance is undefined


def leave_one_out(evaluate: Evaluate, design: SamplingDesign, *, max_blocks: int = 1000) -> LeaveOneOut:
    """Every metric of `evaluate` with each unit left out; more than `max_blocks` units go in equal blocks.

    >>> from histobench.statistics.resampling import sampling_design
    >>> x = np.array([1.0, 2.0, 6.0])
    >>> found = leave_one_out(lambda w: {"mean": w @ x / w.sum(axis=1)}, sampling_design(3))
    >>> round(float(found.variance[0]), 6) == round(float(x.var(ddof=1) / 3), 6)
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
    covariance = found.covariance
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


def pair_statements(
    difference: Floats, error: Floats, freedom: float, *, level: float, span: float = np.inf
) -> tuple[Floats, Floats, Floats]:
    """Lower and upper bounds and p-values [m, m] of each pair by itself, from `pair_errors`.

    Bounds lie within -span and span; NaN without a standard error.
    """
    reach = t_quantile(freedom, level)
    low, high = difference - reach * error, difference + reach * error.T
    p_value = t_p_value(pair_t(difference, error), freedom)
    return np.maximum(low, -span), np.minimum(high, span), p_value


def pair_t(difference: Floats, error: Floats) -> Floats:
    """Differences in standard errors of the bound on the side of 0; NaN without one."""
    towards = np.where(difference > 0, error, error.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, difference / towards)
    return np.asarray(np.where(np.isnan(towards), np.nan, t))


def differences(found: LeaveOneOut, *, level: float = 0.95) -> PairedDifferences:
    """Every pair of columns by the untransformed jackknife-t (`pair_errors`: what holds without spread)."""
    first, second = np.triu_indices(len(found.values), 1)
    difference, error = pair_errors(found, level=level)
    if not found.freedom >= FEWEST_DEGREES:
        error = np.full_like(error, np.nan)
    each = (difference, *pair_statements(difference, error, found.freedom, level=level))
    return PairedDifferences(first, second, *(values[first, second] for values in each))


# Two sources of chance that cross: every episode (or training run) is tested on every test unit.


def crossed(units: LeaveOneOut, episodes: ArrayLike, *, interaction: ArrayLike = 0.0) -> LeaveOneOut:
    """Units and episodes [E, m] together; `units` holds means over episodes with each unit left out.

    `interaction` [m] is the variance that both shares contain, see `interaction_variance`.

    An episode in which a column is undefined is no part of that column's mean. The degrees of freedom are
    Satterthwaite's, over all columns together (over the differences of all pairs where there are several).

    >>> units = LeaveOneOut(("a",), np.array([0.5]), np.array([[0.4], [0.6]]), np.array([0, 0]), 1.0)
    >>> found = crossed(units, [[0.4], [0.5], [0.6]])
    >>> np.isclose(found.variance[0], np.var([0.4, 0.5, 0.6], ddof=1) / 3 + 0.01).item()
    True
    """
    each = np.asarray(episodes, dtype=np.float64)
    apart = LeaveOneOut.unstratified(units.names, units.values, means_without_each(each))
    own = apart.variance
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(own > 0, np.sqrt(np.clip(1 - np.asarray(interaction) / own, 0.0, 1.0)), 1.0)
    middle = apart.left_out.mean(axis=0)
    apart = replace(apart, left_out=middle + kept * (apart.left_out - middle))
    next_stratum = int(units.stratum_of.max(initial=-1)) + 1
    return LeaveOneOut(
        units.names,
        units.values,
        np.concatenate([units.left_out, apart.left_out]),
        np.concatenate([units.stratum_of, np.full(len(each), next_stratum)]),
        satterthwaite([_total(units), _total(apart)], [units.freedom, apart.freedom]),
    )


def interaction_variance(values: Floats, stratum_of: NDArray[np.int64]) -> float:
    """The variance of a mean over episodes by what single units do in single episodes.

    `values` [E, u] are one column's values in each episode with each unit left out.
    """
    n_episodes = len(values)
    if n_episodes < 2 or not np.isfinite(values).all():
        return 0.0
    total = 0.0
    for stratum, size in enumerate(np.bincount(stratum_of)):
        rows = values[:, stratum_of == stratum]
        apart = rows - rows.mean(axis=1, keepdims=True)
        alone = apart - apart.mean(axis=0)
        total += float((alone**2).sum()) * (size - 1) / max(size, 1)
    return total / (n_episodes * (n_episodes - 1))


def means_without_each(rows: Floats) -> Floats:
    """The mean of each column [E, m] without row 0, 1, ..., [E, m]; undefined entries are left out."""
    if len(rows) < 2:
        return np.repeat(np.nanmean(rows, axis=0, keepdims=True), len(rows), axis=0)
    defined = np.isfinite(rows)
    filled = np.where(defined, rows, 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray((filled.sum(axis=0) - filled) / (defined.sum(axis=0) - defined))


def satterthwaite(variances: ArrayLike, freedoms: ArrayLike) -> float:
    """Degrees of freedom of a sum of independent variances, each known with its own.

    >>> satterthwaite([1.0, 1.0], [4.0, 4.0])
    8.0
    >>> satterthwaite([1.0, 0.0], [4.0, 0.0])
    4.0
    """
    parts, own = np.asarray(variances, dtype=np.float64), np.asarray(freedoms, dtype=np.float64)
    some = parts > 0
    if not some.any():
        return float(own.max(initial=0.0))
    if (own[some] <= 0).any():
        return 0.0
    return float(parts[some].sum() ** 2 / (parts[some] ** 2 / own[some]).sum())


def _total(source: LeaveOneOut) -> float:
    """The variance of the columns, or of the differences of their pairs, added up."""
    covariance = source.covariance
    known = np.isfinite(np.diag(covariance))
    covariance = covariance[np.ix_(known, known)]
    if len(covariance) < 2:
        return float(covariance.sum())
    # Of all pairs: the sum of (v_i + v_j - 2 c_ij) over i < j.
    return float(len(covariance) * np.trace(covariance) - covariance.sum())


# Default intervals: the jackknife on a scale on which the metric is closer to normal, with Student's t.

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
#: Of values up to 1 without a lower bound, such as R2: the logarithm of what is missing to 1.
UNEXPLAINED = Scale("log", lambda values, clip: -_log(1 - values, clip), lambda x: 1 - np.exp(-x))


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

    >>> right_of_ten = np.array([[9], [7], [10], [8], [6]])
    >>> left_out = (right_of_ten.sum() - right_of_ten) / 40
    >>> found = LeaveOneOut.unstratified(("rate",), np.array([0.8]), left_out)
    >>> low, high = jackknife_bounds(found, LOGIT, 50)
    >>> round(float(low[0]), 2), round(float(high[0]), 2)
    (0.52, 0.93)
    """
    clip = 0.5 / max(size, 1.0)
    scaled = found.mapped(lambda values: scale.forward(values, clip))
    influences, squares = scaled.influences, scaled.variance
    error = np.sqrt(squares)
    if adapt:
        down, up = student_reach(influences, squares, found.freedom, level, long_tailed=long_tailed)
    else:
        down = up = np.full(len(error), t_quantile(found.freedom, level))
    below, above = down * error, up * error
    if biased:
        bias = (len(influences) - 1) * (scaled.left_out.mean(axis=0) - scaled.values)
        below, above = below + np.maximum(bias, 0.0), above + np.maximum(-bias, 0.0)
    with np.errstate(over="ignore"):  # a bound without end is none
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
