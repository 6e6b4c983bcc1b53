"""Where the encoders of one table stand, as far as the test set can tell: pairs, ranks, the best, the winner.

Everything here holds for all encoders of the table at once, whichever of them one looks at because of its
value. What is left out one at a time are groups (patients, slides) where there are any, and images otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.best import BestSet, WinnerValue, best_set, winner_value
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.jackknife import LeaveOneOut
from histobench.core.statistics.simultaneous import SimultaneousPairs, rank_intervals, simultaneous_pairs
from histobench.roi.comparison.metric_intervals import pair_floor, range_of, scale_of
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.catalogue import LOWER_IS_BETTER, metric_of
from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standings:
    """What holds for all encoders of a table at once."""

    pairs: SimultaneousPairs
    ranks: dict[str, tuple[int, int]]
    best: BestSet
    winner: WinnerValue


def standings_of(
    found: LeaveOneOut,
    metric: str,
    units: SamplingUnits,
    intervals: Mapping[str, Interval],
    *,
    runs: Mapping[str, Predictions] | None = None,
    alpha: float = 0.05,
) -> Standings | None:
    """The standings from one metric of all encoders with each unit left out; None with fewer than two.

    Units count by their size, and for metrics of classes those of the rarest class. `intervals` are those of
    the values, and `runs` the predictions behind them, where the values are metrics of predictions.
    """
    # In the order of their names: what is drawn for the winner's value must not depend on the order of files.
    names = sorted(name for name, value in zip(found.names, found.values, strict=True) if np.isfinite(value))
    if len(names) < 2:
        return None
    freedom = units.freedom_of_all(by_class=metric_of(metric).rare_class_limits)
    found = replace(found.columns(names), freedom=min(found.freedom, freedom))
    level, lower = 1 - alpha, metric in LOWER_IS_BETTER
    floor = pair_floor(metric, found, units, intervals, runs, level=level)
    least, most = range_of(metric, units.n_columns)
    pairs = simultaneous_pairs(found, level=level, lower_is_better=lower, floor=floor, span=most - least)
    ranks = rank_intervals(pairs.better)
    return Standings(
        pairs=pairs,
        ranks={name: (int(row[0]), int(row[1])) for name, row in zip(names, ranks, strict=True)},
        best=best_set(pairs),
        winner=_winner(found, metric, units, intervals, level, lower),
    )


def _winner(
    found: LeaveOneOut,
    metric: str,
    units: SamplingUnits,
    intervals: Mapping[str, Interval],
    level: float,
    lower: bool,
) -> WinnerValue:
    """The winner's value on the metric's own scale; its interval holds the ordinary one of the winner."""
    scale, clip = scale_of(metric, units.n_columns), 0.5 / max(len(units.labels), 1)
    on_scale = found.mapped(lambda values: scale.forward(values, clip))
    winner = int((found.values if lower else -found.values).argmin())
    name, measured = found.names[winner], float(found.values[winner])
    own = intervals[name]
    if own.low is None or own.high is None:
        reason = own.reason or "the value has no interval"
        return WinnerValue(name, measured, measured, replace(own, method="corrected winner", reason=reason))
    low, high = scale.forward(np.array([own.low, own.high]), clip).tolist()
    picked = winner_value(on_scale, level=level, lower_is_better=lower, picked=name, ordinary=(low, high))
    if picked.interval.low is None or picked.interval.high is None:
        return WinnerValue(name, measured, measured, replace(own, method="corrected winner"))
    value, low, high = scale.backward(
        np.array([picked.value, picked.interval.low, picked.interval.high])
    ).tolist()
    # Values next to the end of the scale are kept away from it there, but not here.
    value = measured if picked.value == picked.measured else value
    least, most = range_of(metric, units.n_columns)
    interval = replace(
        picked.interval, low=max(min(low, own.low), least), high=min(max(high, own.high), most)
    )
    return WinnerValue(name, measured, value, interval)
