"""Every pair of a table's runs in columns: fifty runs make more than a thousand pairs of each metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.intervals import percentile_bounds
from histobench.core.statistics.paired import bootstrap_p_values
from histobench.core.statistics.resampling import SamplingDesign

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: The family-wise error rate of every table.
ALPHA = 0.05
#: Differences that are held at a time; few enough for the processor's cache.
_NUMBERS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Pairs:
    """One row for each pair, first - second on the same images; NaN where there is no number."""

    names: tuple[str, ...]  # best first
    difference: Floats
    low: Floats
    high: Floats
    p_value: Floats
    p_adjusted: Floats

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.difference)

    @property
    def places(self) -> tuple[Places, Places]:
        """Where the first and the second run of each pair stand among the names."""
        return places_of_pairs(len(self.names))

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether the difference is real at the table's error rate."""
        return self.p_adjusted <= ALPHA

    def against_best(self) -> dict[str, bool]:
        """Whether the difference from the best run holds, for every other one."""
        # The pairs of the first name come first.
        return dict(zip(self.names[1:], self.holds.tolist(), strict=False))


NO_PAIRS = Pairs((), *np.empty((5, 0)))


def places_of_pairs(n: int) -> tuple[Places, Places]:
    """The pairs of n things, in the order of `itertools.combinations`."""
    first, second = np.triu_indices(n, 1)
    return first, second


def resampled_differences(
    drawn: Floats, design: SamplingDesign, *, with_p: bool
) -> tuple[Floats, Floats, Floats]:
    """Bounds and p-value of the difference of every pair of rows of `drawn` [m, B]."""
    first, second = places_of_pairs(len(drawn))
    low, high, p_value = np.full((3, len(first)), np.nan)
    step = max(1, _NUMBERS_AT_ONCE // drawn.shape[1])
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        rows = drawn[first[part]] - drawn[second[part]]
        low[part], high[part] = percentile_bounds(rows, level=1 - ALPHA)
        if with_p:
            p_value[part] = bootstrap_p_values(rows, design)
    return low, high, p_value
