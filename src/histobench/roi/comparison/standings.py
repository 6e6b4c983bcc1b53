"""Where the encoders of one table stand, as far as the test set can tell: pairs, ranks, the best, the winner.

Everything here holds for all encoders of the table at once, whichever of them one looks at because of its
value. What is left out one at a time are groups (patients, slides) where there are any, and images otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.best import BestSet, WinnerValue, best_set, winner_value
from histobench.core.statistics.jackknife import LeaveOneOut
from histobench.core.statistics.simultaneous import SimultaneousPairs, rank_intervals, simultaneous_pairs
from histobench.roi.comparison.metric_intervals import scale_of
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.catalogue import LOWER_IS_BETTER, metric_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standings:
    """What holds for all encoders of a table at once."""

    pairs: SimultaneousPairs
    ranks: dict[str, tuple[int, int]]
    best: BestSet
    winner: WinnerValue


def standings_of(
    found: LeaveOneOut, metric: str, units: SamplingUnits, *, alpha: float = 0.05
) -> Standings | None:
    """The standings from one metric of all encoders with each unit left out; None with fewer than two.

    Units count by their size, and for metrics of classes those of the rarest class.
    """
    # In the order of their names: what is drawn for the winner's value must not depend on the order of files.
    names = sorted(name for name, value in zip(found.names, found.values, strict=True) if np.isfinite(value))
    if len(names) < 2:
        return None
    freedom = units.freedom_of_all(by_class=metric_of(metric).rare_class_limits)
    found = replace(found.columns(names), freedom=min(found.freedom, freedom))
    level, lower = 1 - alpha, metric in LOWER_IS_BETTER
    pairs = simultaneous_pairs(found, level=level, lower_is_better=lower)
    ranks = rank_intervals(pairs.better)
    scale, clip = scale_of(metric, units.n_columns), 0.5 / max(len(units.labels), 1)
    on_scale = found.mapped(lambda values: scale.forward(values, clip))
    return Standings(
        pairs=pairs,
        ranks={name: (int(row[0]), int(row[1])) for name, row in zip(names, ranks, strict=True)},
        best=best_set(found, level=level, lower_is_better=lower),
        winner=_mapped_back(
            winner_value(on_scale, level=level, lower_is_better=lower), found, scale.backward
        ),
    )


def _mapped_back(winner: WinnerValue, found: LeaveOneOut, back: Callable[[Floats], Floats]) -> WinnerValue:
    interval = winner.interval
    low, value, high = back(np.array([interval.low or 0.0, winner.value, interval.high or 0.0])).tolist()
    measured = float(found.values[found.names.index(winner.name)])
    if interval.low is None:
        return replace(winner, measured=measured, value=measured)
    return replace(winner, measured=measured, value=value, interval=replace(interval, low=low, high=high))
