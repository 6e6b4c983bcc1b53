"""How far two people or programs that label the same things agree beyond chance: Cohen's kappa.

The standard error is that of Fleiss, Cohen and Everitt (1969). It is 0 where all labels agree, and too small
next to that; so the interval also covers what Wilson's interval of the observed agreement leaves open, with
the agreement by chance taken as known.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.proportion import wilson_bounds


@dataclass(frozen=True)
class Agreement:
    """`n` things with two labels each; `kappa` is None where chance alone would agree on all of them."""

    n: int
    observed: float
    by_chance: float
    kappa: float | None
    standard_error: float | None
    interval: Interval


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable], *, level: float = 0.95) -> Agreement:
    """Agreement of two lists of labels of the same things.

    >>> found = cohen_kappa(["a", "a", "b", "b", "b"], ["a", "b", "b", "b", "b"])
    >>> round(found.kappa, 3), round(found.interval.low, 2), round(found.interval.high, 2)
    (0.545, -0.42, 1.0)
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} labels are compared with {len(second)}")
    n = len(first)
    nothing = Interval(None, None, level, "kappa", 0, "no labels" if n == 0 else "only one label was used")
    if n == 0:
        return Agreement(0, 0.0, 0.0, None, None, nothing)
    known = {label: number for number, label in enumerate(dict.fromkeys([*first, *second]))}
    table = np.zeros((len(known), len(known)))
    for one, other in zip(first, second, strict=True):
        table[known[one], known[other]] += 1 / n
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    observed, chance = float(np.trace(table)), float(rows @ columns)
    if chance >= 1 - 1e-12:
        return Agreement(n, observed, chance, None, None, nothing)
    kappa = (observed - chance) / (1 - chance)
    error = _standard_error(table, rows, columns, kappa, chance, n)
    reach = float(special.ndtri((1 + level) / 2)) * error
    low, high = wilson_bounds(observed * n, n, level=level)
    bounds = [(float(bound) - chance) / (1 - chance) for bound in (low, high)]
    interval = Interval(
        max(min(kappa - reach, bounds[0]), -1.0), min(max(kappa + reach, bounds[1]), 1.0), level, "kappa", 0
    )
    return Agreement(n, observed, chance, kappa, error, interval)


def _standard_error(
    table: np.ndarray, rows: np.ndarray, columns: np.ndarray, kappa: float, chance: float, n: int
) -> float:
    agreeing = np.diag(table)
    same = (agreeing * (1 - (rows + columns) * (1 - kappa)) ** 2).sum()
    # Of row i and column j it is the column's share of i and the row's share of j that count.
    crossed = table * (columns[:, None] + rows[None, :]) ** 2
    other = (1 - kappa) ** 2 * (crossed.sum() - np.trace(crossed))
    rest = (kappa - chance * (1 - kappa)) ** 2
    return float(np.sqrt(max(same + other - rest, 0.0) / n) / (1 - chance))
