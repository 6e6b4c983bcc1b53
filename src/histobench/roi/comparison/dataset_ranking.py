"""Encoders over several datasets: mean ranks, Friedman, Nemenyi and wins, ties and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.ranking import (
    Friedman,
    WinTieLoss,
    cliques,
    friedman,
    mean_ranks,
    nemenyi_critical_difference,
    nemenyi_p_values,
    win_tie_loss,
)

if TYPE_CHECKING:
    from histobench.roi.comparison.comparison import DatasetTable


@dataclass(frozen=True)
class DatasetRanking:
    """The encoders that were run on every dataset, best mean rank first."""

    names: tuple[str, ...]
    datasets: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    mean_values: tuple[float, ...]
    friedman: Friedman
    critical_difference: float
    nemenyi_p: tuple[tuple[float, ...], ...]
    groups: tuple[tuple[str, ...], ...]  # within each, no two mean ranks differ
    win_tie_loss: WinTieLoss  # rows against columns, in the order of `names`
    left_out: tuple[str, ...]  # encoders that are missing on some dataset
    notes: tuple[str, ...] = ()


def rank_over_datasets(
    tables: Sequence[DatasetTable], *, alpha: float, lower_is_better: bool
) -> DatasetRanking | None:
    """The ranking, or None when fewer than two datasets share two encoders."""
    values = [{e.name: e.value for e in table.entries if e.value is not None} for table in tables]
    everyone = sorted({entry.name for table in tables for entry in table.entries})
    shared = [name for name in everyone if all(name in table for table in values)]
    if len(tables) < 2 or len(shared) < 2:
        return None
    scores = np.array([[table[name] for name in shared] for table in values], dtype=np.float64)
    ranks = mean_ranks(scores, higher_is_better=not lower_is_better)
    order = np.lexsort((np.arange(len(shared)), ranks))
    names = [shared[k] for k in order]
    critical = nemenyi_critical_difference(len(names), len(tables), alpha=alpha)
    test = friedman(scores)
    sign = -1.0 if lower_is_better else 1.0
    return DatasetRanking(
        names=tuple(names),
        datasets=tuple(table.dataset for table in tables),
        mean_ranks=tuple(ranks[order].tolist()),
        mean_values=tuple(scores.mean(axis=0)[order].tolist()),
        friedman=test,
        critical_difference=critical,
        nemenyi_p=tuple(map(tuple, nemenyi_p_values(ranks[order], len(tables)).tolist())),
        groups=tuple(tuple(names[k] for k in group) for group in cliques(ranks[order], critical)),
        win_tie_loss=win_tie_loss([_better_by(table, names, sign) for table in tables]),
        left_out=tuple(name for name in everyone if name not in shared),
        notes=_notes(test, len(tables), len(names), alpha),
    )


def _better_by(table: DatasetTable, names: list[str], sign: float) -> list[list[Interval | None]]:
    """Intervals of "row is better than column by"."""

    def interval(first: str, second: str) -> Interval | None:
        pair = None if first == second else table.pair(first, second)
        if pair is None:
            return None
        return (pair if sign > 0 else pair.reversed()).interval

    return [[interval(first, second) for second in names] for first in names]


def _notes(test: Friedman, n_datasets: int, n_models: int, alpha: float) -> tuple[str, ...]:
    notes = []
    if test.p_value > alpha:
        notes.append("Friedman's test finds no difference between mean ranks: do not read the order as one")
    if n_datasets < 5:
        notes.append(
            f"{n_datasets} datasets are few for a ranking: mean ranks hardly ever differ significantly"
        )
    widest = float(n_models - 1)
    if nemenyi_critical_difference(n_models, n_datasets, alpha=alpha) >= widest:
        notes.append("the critical difference exceeds the largest possible distance of two mean ranks")
    return tuple(notes)
