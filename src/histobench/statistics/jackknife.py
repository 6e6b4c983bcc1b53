"""One rule for intervals and differences: the jackknife over units, with an allowance for what was not seen.

To the squared spread over units (patients, slides; else images) are added the squares of the *unseen moves*:
how far the metric would move if a few more images turned wrong. docs/explanation/statistics.md has the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from histobench.statistics.resampling import Evaluate, SamplingDesign, jackknife_of_all

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Deviations below this share of the values are rounding errors, not spread.
ROUNDING = 1e-12
#: With fewer effective degrees of freedom a spread says nothing: no interval and no p-value.
FEWEST_DEGREES = 2.0
#: Student's t is not taken with fewer degrees of freedom than this.
LEAST_FREEDOM = 3.0
#: The correlation of unseen mistakes within a unit: nothing in the data can tell it.
ASSUMED_CORRELATION = 0.05
#: The same for tries of one task, which mostly end alike.
TRIES_ALIKE = 0.75
#: Bunches of mistakes that an interval allows to be unseen: as many as Wilson's adds (1.96^2 / 2).
UNSEEN_BUNCHES = 2.0
#: The part of a bunch that turns: with more of it, few images of a rare class get intervals far too wide.
TURNING_PART = 0.75
#: The share of each model's squared unseen moves that enters a difference: both met the same images.
SHARE_OF_UNSEEN = 1 / 8
#: The squared spread of a share over groups counts by so much more: it is skewed.
SKEWED = 1.1
UNIT_RANGE = (0.0, 1.0)


@dataclass(frozen=True)
class LeaveOneOut:
    """m columns (metrics of one model, or one metric of m models) on all units, and with each left out."""

    names: tuple[str, ...]
    values: Floats  # [m]
    left_out: Floats  # [u, m]
    unseen: Floats = field(default_factory=lambda: np.zeros((1, 1)))  # [k, m] or [k, 1], signed moves
    size: float = np.inf  # independent samples that a value can be worth at most
    freedom: float = np.inf  # degrees of freedom that the sizes of the units allow
    grouped: bool = True  # whether units hold several samples, so that a few units may carry the spread
    episodes: LeaveOneOut | None = None  # the second source of chance of a crossed design
    moved: Floats | None = None  # [m], values after the unseen moves, where they do not simply add up

    @cached_property
    def influences(self) -> Floats:
        """Scaled deviations [u, m] whose squares add up to the variances of this source of chance."""
        u = len(self.left_out)
        if u < 2:
            return np.full_like(self.left_out, np.nan)
        apart = self.left_out.mean(axis=0) - self.left_out
        rounding = np.abs(apart) <= ROUNDING * np.abs(self.left_out).max(axis=0)
        return np.asarray(((u - 1) / u) ** 0.5 * np.where(rounding, 0.0, apart))

    @cached_property
    def covariance(self) -> Floats:
        """The jackknife covariance of the columns [m, m]; NaN where a left-out value is undefined."""
        covariance: Floats = self.influences.T @ self.influences
        if self.episodes is not None:
            covariance = covariance + self.episodes.covariance
        covariance.flags.writeable = False
        return covariance

    @cached_property
    def variance(self) -> Floats:
        own = np.einsum("um,um->m", self.influences, self.influences)
        return own if self.episodes is None else own + self.episodes.variance

    @property
    def unseen_variance(self) -> Floats:
        return np.broadcast_to((self.unseen**2).sum(axis=0), self.values.shape)

    @cached_property
    def degrees(self) -> Floats:
        """Degrees of freedom of each column: what the units' sizes allow, and what their influences show."""
        own = self._own_degrees()
        if self.episodes is None:
            return own
        parts = np.stack([self.variance - self.episodes.variance + self.unseen_variance,
                          self.episodes.variance])  # fmt: skip
        freedoms = np.stack([own, np.full_like(own, len(self.episodes.left_out) - 1.0)])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(parts.sum(axis=0) ** 2 / (parts**2 / freedoms).sum(axis=0))

    def _own_degrees(self) -> Floats:
        u = len(self.left_out)
        most = max(u - 1.0, 1.0)
        least = min(LEAST_FREEDOM, most)
        sizes = np.clip(self.freedom, least, most)
        if not self.grouped:
            return np.full_like(self.values, sizes)
        squares = self.influences**2
        seen = squares.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shown = 2 / np.maximum((squares**2).sum(axis=0) / seen**2 - 1 / u, 1e-12)
            share = np.nan_to_num(seen / (seen + UNSEEN_BUNCHES * self.unseen_variance))
        shown = np.minimum(np.clip(np.nan_to_num(shown, nan=most), least, most), sizes)
        # Few units may carry the seen spread; the unseen moves are not estimated from them.
        return np.asarray(1 / ((1 - share) / most + share / shown))

    def columns(self, names: Sequence[str]) -> LeaveOneOut:
        places = [self.names.index(name) for name in names]
        return replace(
            self,
            names=tuple(names),
            values=self.values[places],
            left_out=self.left_out[:, places],
            unseen=self.unseen if self.unseen.shape[1] == 1 else self.unseen[:, places],
            moved=None if self.moved is None else self.moved[places],
            episodes=None if self.episodes is None else self.episodes.columns(names),
        )


def leave_one_out(evaluate: Evaluate, design: SamplingDesign, *, max_blocks: int = 1000) -> LeaveOneOut:
    """Every metric with each unit left out, and with the unseen moves of a mean over the samples."""
    observed = evaluate(np.ones((1, design.n_samples), dtype=np.int32))
    left_out = jackknife_of_all(evaluate, design, max_blocks=max_blocks)
    sizes = np.bincount(design.unit_of)
    return LeaveOneOut(
        names=tuple(observed),
        values=np.array([float(values[0]) for values in observed.values()]),
        left_out=np.stack([left_out[name] for name in observed], axis=1),
        unseen=np.array([[-bunch(sizes) / max(sizes.sum(), 1)]]),
        size=float(sizes.sum()),
        freedom=freedom_of_sizes(sizes),
        grouped=bool((sizes > 1).any()),
    )


def bunch(sizes: ArrayLike, correlation: float = ASSUMED_CORRELATION) -> float:
    """How many images turn wrong together in one unit, of units with so many images."""
    each = np.asarray(sizes, dtype=np.float64)
    total = float(each.sum())
    return 1 + correlation * max(float((each**2).sum()) / total - 1, 0.0) if total > 0 else 1.0


def bunches(errors: Floats, sizes: Floats, correlation: float = ASSUMED_CORRELATION) -> Floats:
    total = sizes.sum()
    seen = errors.sum(axis=0)
    share = seen / max(float(total), 1.0)
    spread = ((errors - sizes[:, None] * share) ** 2).sum(axis=0)
    assumed = bunch(sizes, correlation)
    return np.asarray(np.maximum((spread + assumed) / (seen * (1 - share) + 1), assumed))


def turning(errors: Floats, sizes: Floats, *, size: Floats | None = None) -> Floats:
    """How many samples turn right [m] (negative: wrong): most of a bunch, at most half of what can turn.

    Units have errors [u, m] among sizes [u]; where most samples are wrong, some turn right.
    """
    wrong = errors.sum(axis=0)
    right = sizes.sum() - wrong
    size = TURNING_PART * (bunches(errors, sizes) if size is None else size)
    return np.where(right >= wrong, -np.minimum(size, right / 2), np.minimum(size, wrong / 2))


def freedom_of_sizes(*sizes: ArrayLike) -> float:
    """Degrees of freedom of a variance over units, from their sizes in each part (class) of the samples."""
    shares = [np.asarray(each, dtype=np.float64) for each in sizes]
    weights = np.sqrt(sum((each / max(float(each.sum()), 1.0)) ** 2 for each in shares))
    total = float((weights**2).sum())
    return float(weights.sum() ** 2 / total) - 1 if total > 0 else 0.0


def t_quantile(freedom: ArrayLike, level: float = 0.95) -> Floats:
    """How many standard errors a two-sided interval reaches to either side."""
    degrees = np.minimum(np.asarray(freedom, dtype=np.float64), 1e9)
    return np.asarray(scipy.special.stdtrit(degrees, (1 + level) / 2))


def t_p_value(t: ArrayLike, freedom: ArrayLike) -> Floats:
    degrees = np.minimum(np.asarray(freedom, dtype=np.float64), 1e9)
    return np.asarray(2 * scipy.special.stdtr(degrees, -np.abs(np.asarray(t, dtype=np.float64))))


def bounds(
    found: LeaveOneOut, within: tuple[float, float] = UNIT_RANGE, *, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of every column, whose values lie `within`; NaN where one is undefined.

    Two finite ends: Wilson's interval. One: the logarithm of the distance from it. None: Student's t.
    """
    least, most = within
    t = t_quantile(found.degrees, level)
    if np.isfinite(most - least):
        share, worth = _worth(found, within)
        low, high = wilson_bounds(share, worth, t)
        return least + (most - least) * low, least + (most - least) * high
    error = np.sqrt(found.variance + found.unseen_variance)
    if not np.isfinite(least) and not np.isfinite(most):
        return found.values - t * error, found.values + t * error
    distance = found.values - least if np.isfinite(least) else most - found.values
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        reach = np.exp(t * error / distance)
        near, far = distance / reach, distance * reach
    return (least + near, least + far) if np.isfinite(least) else (most - far, most - near)


def _worth(found: LeaveOneOut, within: tuple[float, float]) -> tuple[Floats, Floats]:
    """Values as shares of their range [m], and how many independent samples each is worth."""
    least, span = within[0], within[1] - within[0]
    share = (found.values - least) / span
    edge = min(1 / found.size, 0.5)
    after = found.values + UNSEEN_BUNCHES * found.unseen.sum(axis=0) if found.moved is None else found.moved
    moved = np.clip((after - least) / span, edge, 1 - edge)
    seen = found.variance * (SKEWED if found.grouped else 1.0)
    variance = (seen + UNSEEN_BUNCHES * found.unseen_variance) / span**2
    worth = moved * (1 - moved) / np.maximum(variance, edge**4)
    return share, np.clip(worth, 0.5, max(found.size * span**2, 0.5))


def wilson_bounds(share: ArrayLike, n: ArrayLike, reach: ArrayLike) -> tuple[Floats, Floats]:
    """Wilson's bounds of a share among n (which need not be whole); `reach` is 1.96 for 95 % of many."""
    p, size, t = (np.asarray(each, dtype=np.float64) for each in (share, n, reach))
    extra = t * t / size
    middle = (p + extra / 2) / (1 + extra)
    half = t / (1 + extra) * np.sqrt(p * (1 - p) / size + extra / (4 * size))
    return np.minimum(np.maximum(middle - half, 0.0), p), np.maximum(np.minimum(middle + half, 1.0), p)


def proportion(successes: ArrayLike, sizes: ArrayLike, *, strata: ArrayLike | None = None) -> LeaveOneOut:
    """A share of all samples of units, of which each has successes; spread within `strata` counts alone."""
    x, n = np.asarray(successes, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    total, u = float(n.sum()), len(n)
    left_out = (x.sum() - x) / np.maximum(total - n, 1e-9)
    if strata is not None:
        codes = np.unique(strata, return_inverse=True)[1]
        means = np.bincount(codes, left_out) / np.bincount(codes)
        left_out = left_out - (means - left_out.mean())[codes]
    failed = (n - x)[:, None]
    turned = turning(failed, n, size=bunches(failed, n, TRIES_ALIKE))
    return LeaveOneOut(
        ("share",), np.array([x.sum() / total]), left_out.reshape(u, 1), turned[None] / total, total,
        freedom_of_sizes(n), grouped=bool((n > 1).any()),
    )  # fmt: skip


def pair_errors(found: LeaveOneOut) -> tuple[Floats, Floats, Floats]:
    """Differences row - column, their standard errors and degrees of freedom, [m, m] each."""
    difference = found.values[:, None] - found.values[None, :]
    covariance, unseen, degrees = found.covariance, found.unseen_variance, found.degrees
    spread = np.diag(covariance)
    together = spread[:, None] + spread[None, :]
    variance = np.maximum(together - 2 * covariance, 0.0)
    variance = np.where(variance <= ROUNDING * together, 0.0, variance)
    error = np.sqrt(variance + SHARE_OF_UNSEEN * (unseen[:, None] + unseen[None, :]))
    np.fill_diagonal(error, 0.0)
    difference = np.where(np.abs(difference) <= ROUNDING * (1 + np.abs(found.values)), 0.0, difference)
    inverse = 1 / degrees
    return difference, error, np.asarray(2 / (inverse[:, None] + inverse[None, :]))


def pair_t(difference: Floats, error: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(difference == 0, error * 0, difference / error))


@dataclass(frozen=True)
class PairedDifferences:
    """Every pair of columns in the order of `itertools.combinations`: first - second."""

    first: NDArray[np.intp]  # [pairs], places among the columns
    second: NDArray[np.intp]
    difference: Floats
    low: Floats
    high: Floats
    p_value: Floats  # two-sided; NaN where the variance is undefined


def differences(found: LeaveOneOut, *, level: float = 0.95) -> PairedDifferences:
    first, second = np.triu_indices(len(found.values), 1)
    difference, error, freedom = (each[first, second] for each in pair_errors(found))
    reach = t_quantile(freedom, level) * error
    p_value = t_p_value(pair_t(difference, error), freedom)
    return PairedDifferences(first, second, difference, difference - reach, difference + reach, p_value)


def crossed(units: LeaveOneOut, episodes: ArrayLike, *, interaction: ArrayLike = 0.0) -> LeaveOneOut:
    """Units and episodes [E, m] together; `units` holds means over episodes with each unit left out.

    `interaction` [m] is the variance that both shares contain, see `interaction_variance`. An episode in
    which a column is undefined is not part of that column's mean.
    """
    apart = LeaveOneOut(units.names, units.values, means_without_each(np.asarray(episodes, dtype=np.float64)))
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.sqrt(np.clip(1 - np.asarray(interaction) / apart.variance, 0.0, 1.0))
    kept = np.where(apart.variance > 0, kept, 1.0)
    middle = apart.left_out.mean(axis=0)
    return replace(units, episodes=replace(apart, left_out=middle + kept * (apart.left_out - middle)))


def interaction_variance(values: Floats) -> float:
    """The variance of a mean over episodes by what single units do in single episodes.

    `values` [E, u] are one column's values in each episode with each unit left out.
    """
    n_episodes, u = values.shape
    if n_episodes < 2 or u < 2 or not np.isfinite(values).all():
        return 0.0
    apart = values - values.mean(axis=1, keepdims=True)
    alone = apart - apart.mean(axis=0)
    return float((alone**2).sum()) * (u - 1) / u / (n_episodes * (n_episodes - 1))


def means_without_each(rows: Floats) -> Floats:
    """The mean of each column [E, m] without row 0, 1, ..., [E, m]; undefined entries are left out."""
    if len(rows) < 2:
        return np.repeat(np.nanmean(rows, axis=0, keepdims=True), len(rows), axis=0)
    defined = np.isfinite(rows)
    filled = np.where(defined, rows, 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray((filled.sum(axis=0) - filled) / (defined.sum(axis=0) - defined))
