"""Two models on the same samples: the paired bootstrap of the difference of any metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.statistics.intervals import Interval, bca_interval, percentile_interval
from histobench.core.statistics.resampling import (
    Metric,
    SamplingDesign,
    jackknife,
    jackknife_strata,
    replicates,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairedDifference:
    """first - second with its interval and the two-sided p-value of "no difference"."""

    difference: float
    interval: Interval
    p_value: float


def paired_bootstrap(
    first: Metric,
    second: Metric,
    design: SamplingDesign,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    method: str = "percentile",
) -> PairedDifference:
    """Difference of a metric between two models, both evaluated on the same resamples."""

    def difference(counts: NDArray[np.int32]) -> Floats:
        return np.asarray(first(counts), dtype=np.float64) - np.asarray(second(counts), dtype=np.float64)

    observed = float(difference(np.ones((1, design.n_samples), dtype=np.int32))[0])
    resampled = replicates(difference, design, n_resamples=n_resamples, seed=seed)
    if method == "percentile":
        return paired_difference(observed, resampled, design, level=level)
    interval = bca_interval(
        resampled, observed, jackknife(difference, design), strata=jackknife_strata(design), level=level
    )
    return PairedDifference(observed, interval, bootstrap_p_value(resampled, design))


def paired_difference(
    observed: float, resampled: Floats, design: SamplingDesign | None = None, *, level: float = 0.95
) -> PairedDifference:
    """The comparison from differences that have been resampled already."""
    return PairedDifference(
        observed, percentile_interval(resampled, level=level), bootstrap_p_value(resampled, design)
    )


def bootstrap_p_value(resampled: Floats, design: SamplingDesign | None = None) -> float:
    """Two-sided p-value: the smallest alpha whose percentile interval of the difference excludes 0.

    Resamples at exactly 0 count to both sides, and one is added to the count of each side, so that the
    p-value is never 0: with B resamples it is at least 2 / (B + 1).

    Resamples of few units spread too little. With a `design` the p-value is corrected for that as in the
    expanded percentile interval (Hesterberg 2015): its normal quantile is read as one of Student's t.

    >>> bootstrap_p_value(np.ones(999))
    0.002
    """
    return float(bootstrap_p_values(np.asarray(resampled, dtype=np.float64)[None], design)[0])


def bootstrap_p_values(rows: Floats, design: SamplingDesign | None = None) -> Floats:
    """`bootstrap_p_value` of every row [m, B]."""
    finite = np.isfinite(rows)
    tail = np.minimum(((rows <= 0) & finite).sum(axis=1), ((rows >= 0) & finite).sum(axis=1))
    valid = finite.sum(axis=1)
    p_values = np.where(valid > 0, np.minimum(1.0, 2 * (tail + 1) / (valid + 1)), 1.0)
    return _for_few_units(p_values, design)


def smallest_p_value(n_resamples: int, design: SamplingDesign | None = None) -> float:
    """The smallest p-value that `n_resamples` resamples can give."""
    return float(_for_few_units(np.array([2 / (n_resamples + 1)]), design)[0])


def _for_few_units(p_values: Floats, design: SamplingDesign | None) -> Floats:
    if design is None:
        return p_values
    freedom = design.degrees_of_freedom
    if freedom <= 0:
        return np.ones_like(p_values)
    shrink = (freedom / (freedom + 1)) ** 0.5
    quantiles = special.ndtri(1 - p_values / 2) * shrink
    return np.where(p_values < 1, 2 * special.stdtr(freedom, -quantiles), p_values)
