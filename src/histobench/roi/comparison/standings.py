"""Where the encoders of one table stand, as far as the test set can tell: pairs, ranks, the best, the winner.

Everything here holds for all encoders of the table at once, whichever of them one looks at because of its
value. What is left out one at a time are groups (patients, slides) where there are any, and images otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.statistics.best import BestSet, WinnerValue, best_set, winner_value
from histobench.core.statistics.effective_units import effective_freedom
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.jackknife import LeaveOneOut
from histobench.core.statistics.resampling import SamplingDesign
from histobench.core.statistics.simultaneous import SimultaneousPairs, rank_intervals, simultaneous_pairs
from histobench.roi.metrics.formulas import LOWER_IS_BETTER

Floats = NDArray[np.float64]
#: Metrics that weigh images, not classes: a rare class does not limit what is known about them.
_BY_IMAGE = frozenset({"accuracy", "log_loss", "brier", "ece", "mce"})
_CORRELATIONS = frozenset({"mcc", "quadratic_kappa", "linear_kappa"})


@dataclass(frozen=True)
class Standings:
    """What holds for all encoders of a table at once."""

    pairs: SimultaneousPairs
    ranks: dict[str, tuple[int, int]]
    best: BestSet
    winner: WinnerValue

    def interval(self, first: str, second: str) -> Interval:
        """The simultaneous interval of first - second."""
        i, j = self._place(first), self._place(second)
        low, high = float(self.pairs.low[i, j]), float(self.pairs.high[i, j])
        if not np.isfinite(low):
            return Interval(None, None, method="max-t", reason="the units do not show how far it varies")
        return Interval(low, high, method="max-t")

    def p_value(self, first: str, second: str) -> float:
        """The p-value of first - second, corrected for all pairs; NaN where there is none."""
        return float(self.pairs.p_adjusted[self._place(first), self._place(second)])

    def _place(self, name: str) -> int:
        return self.pairs.names.index(name)


def standings_of(
    found: LeaveOneOut, metric: str, design: SamplingDesign, labels: NDArray[np.int64], *, alpha: float = 0.05
) -> Standings | None:
    """The standings of one metric of all encoders; None with fewer than two that have it.

    Units count by their size, and for metrics of classes those of the rarest class.
    """
    freedom = effective_freedom(design, None if metric in _BY_IMAGE else labels)
    return standings(replace(found, freedom=min(found.freedom, freedom)), metric, len(labels), alpha=alpha)


def standings(found: LeaveOneOut, metric: str, n_images: int, *, alpha: float = 0.05) -> Standings | None:
    """The standings from one metric of all encoders with each unit left out."""
    # In the order of their names: what is drawn for the winner's value must not depend on the order of files.
    names = sorted(name for name, value in zip(found.names, found.values, strict=True) if np.isfinite(value))
    if len(names) < 2:
        return None
    found = found.columns(names)
    level, lower = 1 - alpha, metric in LOWER_IS_BETTER
    pairs = simultaneous_pairs(found, level=level, lower_is_better=lower)
    ranks = rank_intervals(pairs.better)
    forward, back = _scale(metric, n_images)
    winner = winner_value(found.mapped(forward), level=level, lower_is_better=lower)
    return Standings(
        pairs=pairs,
        ranks={name: (int(row[0]), int(row[1])) for name, row in zip(names, ranks, strict=True)},
        best=best_set(found, level=level, lower_is_better=lower),
        winner=_mapped_back(winner, found, back),
    )


def _mapped_back(winner: WinnerValue, found: LeaveOneOut, back: Callable[[Floats], Floats]) -> WinnerValue:
    interval = winner.interval
    low, value, high = back(np.array([interval.low or 0.0, winner.value, interval.high or 0.0])).tolist()
    measured = float(found.values[found.names.index(winner.name)])
    if interval.low is None:
        return replace(winner, measured=measured, value=measured)
    return replace(winner, measured=measured, value=value, interval=replace(interval, low=low, high=high))


def _scale(metric: str, n: int) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """A scale on which the metric is closer to normal, and the way back."""
    edge = 0.5 / max(n, 1)
    if metric in _CORRELATIONS:
        return lambda values: np.arctanh(np.clip(values, 2 * edge - 1, 1 - 2 * edge)), np.tanh
    if metric in {"log_loss", "brier"}:
        return lambda values: np.log(np.maximum(values, 1e-12)), np.exp
    return lambda values: special.logit(np.clip(values, edge, 1 - edge)), special.expit
