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
    complete_block,
    friedman,
    mean_ranks,
    nemenyi_critical_difference,
    nemenyi_p_values,
    win_tie_loss,
)
from histobench.core.statistics.signed_rank import SignedRank, signed_ranks

if TYPE_CHECKING:
    from histobench.roi.comparison.comparison import DatasetTable


@dataclass(frozen=True)
class DatasetRanking:
    """Encoders over datasets, best mean rank first.

    Mean ranks need a table without gaps: encoders and datasets that would leave gaps are in `left_out` and
    `left_out_datasets` (`complete_block` says which). The chances of pairs have all encoders, each pair on
    the datasets that both were run on.
    """

    names: tuple[str, ...]
    datasets: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    mean_values: tuple[float, ...]
    friedman: Friedman
    critical_difference: float
    nemenyi_p: tuple[tuple[float, ...], ...]
    groups: tuple[tuple[str, ...], ...]  # within each, no two mean ranks differ
    win_tie_loss: WinTieLoss  # rows against columns, in the order of `names`
    left_out: tuple[str, ...]  # encoders without a mean rank
    notes: tuple[str, ...] = ()
    left_out_datasets: tuple[str, ...] = ()
    run_on: tuple[tuple[str, int], ...] = ()  # every encoder, and on how many of all datasets it has a value
    rope: float = 0.01
    chances: tuple[tuple[SignedRank | None, ...], ...] = ()  # rows against columns, in the order of `run_on`


def rank_over_datasets(
    tables: Sequence[DatasetTable], *, alpha: float, lower_is_better: bool, rope: float = 0.01
) -> DatasetRanking | None:
    """The ranking, or None when fewer than two datasets share two encoders."""
    everyone = sorted({entry.name for table in tables for entry in table.entries})
    known = [{entry.name: entry.value for entry in table.entries} for table in tables]
    every = np.array([[values.get(name) for name in everyone] for values in known], dtype=np.float64)
    if len(tables) < 2 or len(everyone) < 2:
        return None
    rows, columns = complete_block(np.isfinite(every))
    if len(rows) < 2 or len(columns) < 2:
        return None
    shared, ranked = [everyone[k] for k in columns], [tables[k] for k in rows]
    scores = every[np.ix_(rows, columns)]
    ranks = mean_ranks(scores, higher_is_better=not lower_is_better)
    order = np.lexsort((np.arange(len(shared)), ranks))
    names = [shared[k] for k in order]
    left_out = [name for name in everyone if name not in shared]
    listed = [everyone.index(name) for name in (*names, *left_out)]
    critical = nemenyi_critical_difference(len(names), len(ranked), alpha=alpha)
    test = friedman(scores)
    sign = -1.0 if lower_is_better else 1.0
    return DatasetRanking(
        names=tuple(names),
        datasets=tuple(table.dataset for table in ranked),
        mean_ranks=tuple(ranks[order].tolist()),
        mean_values=tuple(scores.mean(axis=0)[order].tolist()),
        friedman=test,
        critical_difference=critical,
        nemenyi_p=tuple(map(tuple, nemenyi_p_values(ranks[order], len(ranked)).tolist())),
        groups=tuple(tuple(names[k] for k in group) for group in cliques(ranks[order], critical)),
        win_tie_loss=win_tie_loss([_better_by(table, names, sign) for table in ranked]),
        left_out=tuple(left_out),
        notes=_notes(test, len(ranked), len(names), alpha),
        left_out_datasets=tuple(table.dataset for table in tables if table not in ranked),
        run_on=tuple((everyone[k], int(np.isfinite(every[:, k]).sum())) for k in listed),
        rope=rope,
        chances=tuple(map(tuple, signed_ranks(every[:, listed], rope=rope, lower_is_better=lower_is_better))),
    )


def _better_by(table: DatasetTable, names: list[str], sign: float) -> list[list[Interval | None]]:
    """Intervals of "row is better than column by"."""

    def interval(first: str, second: str) -> Interval | None:
        pair = None if first == second else table.pair(first, second)
        if pair is None:
            return None
        # One table makes many comparisons; only intervals that hold together may be counted as wins.
        together = pair.simultaneous if pair.simultaneous.low is not None else pair.interval
        return together if sign > 0 else together.negated()

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
