"""Two sources of chance that cross: every episode (or training run) is tested on every test unit.

The mean over episodes varies with the episodes that were drawn and with the test units. Leaving out one unit
at a time tells the second, leaving out one episode at a time the first, and the variances add up: a crossed
`LeaveOneOut` has the units' strata and one more, that of the episodes. What a unit does in one episode and
not in others is part of both and would count twice (Owen 2007), so it is taken off the episodes' share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.core.statistics.jackknife import LeaveOneOut

Floats = NDArray[np.float64]


def crossed(units: LeaveOneOut, episodes: ArrayLike, *, interaction: ArrayLike = 0.0) -> LeaveOneOut:
    """Units and episodes [E, m] together; `units` holds means over episodes with each unit left out.

    `interaction` [m] is the variance that both shares contain, see `interaction_variance`.

    An episode in which a column is undefined is no part of that column's mean. The degrees of freedom are
    Satterthwaite's, over all columns together (over the differences of all pairs where there are several).

    >>> units = LeaveOneOut(("a",), np.array([0.5]), np.array([[0.4], [0.6]]), np.array([0, 0]), 1.0)
    >>> found = crossed(units, [[0.4], [0.5], [0.6]])
    >>> np.isclose(found.variance()[0], np.var([0.4, 0.5, 0.6], ddof=1) / 3 + 0.01).item()
    True
    """
    each = np.asarray(episodes, dtype=np.float64)
    apart = LeaveOneOut(
        units.names,
        units.values,
        means_without_each(each),
        np.zeros(len(each), dtype=np.int64),
        len(each) - 1.0,
    )
    own = apart.variance()
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
        _freedom([units, apart]),
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


def _freedom(sources: list[LeaveOneOut]) -> float:
    return satterthwaite([_total(source) for source in sources], [source.freedom for source in sources])


def _total(source: LeaveOneOut) -> float:
    """The variance of the columns, or of the differences of their pairs, added up."""
    covariance = source.covariance()
    known = np.isfinite(np.diag(covariance))
    covariance = covariance[np.ix_(known, known)]
    if len(covariance) < 2:
        return float(covariance.sum())
    # Of all pairs: the sum of (v_i + v_j - 2 c_ij) over i < j.
    return float(len(covariance) * np.trace(covariance) - covariance.sum())
