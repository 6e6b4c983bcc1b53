"""Every pair of a table's runs: differences, intervals and tests, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.statistics.many_models import SimultaneousPairs

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: The family-wise error rate of every table.
ALPHA = 0.05
#: How tables call the test that decides.
MAX_T = "paired jackknife t-tests, max-t correction for all pairs"


@dataclass(frozen=True)
class Pairs:
    """One row for each pair, first - second on the same images; NaN where there is no number.

    `low`, `high` and `p_adjusted` are for all pairs at once (max-t): the bounds exclude 0 exactly where
    `p_adjusted` is below `alpha`. `own_low`, `own_high` and `p_value` are those of the pair as if it were the
    only one.
    """

    names: tuple[str, ...]  # best first
    difference: Floats
    low: Floats
    high: Floats
    p_value: Floats
    p_adjusted: Floats
    own_low: Floats
    own_high: Floats
    alpha: float = ALPHA

    @classmethod
    def of(cls, names: tuple[str, ...], together: SimultaneousPairs, *, alpha: float = ALPHA) -> Pairs:
        """Of these runs, best first, from what holds for all of them at once."""
        place = np.array([together.names.index(name) for name in names])
        first, second = places_of_pairs(len(names))
        cells = place[first], place[second]
        own_low, own_high = together.alone()
        return cls(
            names=names,
            difference=together.difference[cells],
            low=together.low[cells],
            high=together.high[cells],
            p_value=together.p_value[cells],
            p_adjusted=together.p_adjusted[cells],
            own_low=own_low[cells],
            own_high=own_high[cells],
            alpha=alpha,
        )

    @classmethod
    def untested(cls, names: tuple[str, ...], values: Floats) -> Pairs:
        """Differences of values [m] of which nothing shows how far they vary."""
        first, second = places_of_pairs(len(names))
        low, high, p, adjusted, own_low, own_high = np.full((6, len(first)), np.nan)
        return cls(names, values[first] - values[second], low, high, p, adjusted, own_low, own_high)

    def __len__(self) -> int:
        return len(self.difference)

    @property
    def places(self) -> tuple[Places, Places]:
        """Where the first and the second run of each pair stand among the names."""
        return places_of_pairs(len(self.names))

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether the difference is shown: the rule that marks, ties, ranks and sets of the best go by."""
        return self.p_adjusted < self.alpha

    def against_best(self) -> dict[str, bool]:
        """Whether the difference from the best run holds, for every other one."""
        # The pairs of the first name come first.
        return dict(zip(self.names[1:], self.holds.tolist(), strict=False))


NO_PAIRS = Pairs((), *np.empty((7, 0)))


def places_of_pairs(n: int) -> tuple[Places, Places]:
    """The pairs of n things, in the order of `itertools.combinations`."""
    first, second = np.triu_indices(n, 1)
    return first, second
