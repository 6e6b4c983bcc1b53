"""Encoders over several datasets: mean ranks, Friedman, Nemenyi and wins, ties and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.statistics.many_models import (
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
from histobench.statistics.tests import SignedRank, signed_ranks

if TYPE_CHECKING:
    from histobench.roi.comparison.comparison import DatasetTable

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class RankedBlock:
    """The part of a table [datasets, models] that has no gaps, models by their mean rank, best first."""

    rows: tuple[int, ...]  # places of the datasets in the whole table
    columns: tuple[int, ...]  # places of the models, best mean rank first
    scores: Floats  # [rows, columns]
    mean_ranks: Floats  # [columns]
    friedman: Friedman
    critical_difference: float
    groups: tuple[tuple[int, ...], ...]  # places among `columns`; within each no two mean ranks differ


def ranked_block(values: Floats, *, alpha: float, lower_is_better: bool) -> RankedBlock | None:
    """Mean ranks of models over datasets, `values` [datasets, models] with NaN for gaps.

    None when fewer than two datasets share two models.
    """
    rows, columns = complete_block(np.isfinite(values))
    if len(rows) < 2 or len(columns) < 2:
        return None
    scores = values[np.ix_(rows, columns)]
    ranks = mean_ranks(scores, higher_is_better=not lower_is_better)
    order = np.argsort(ranks, kind="stable")
    critical = nemenyi_critical_difference(len(columns), len(rows), alpha=alpha)
    return RankedBlock(
        rows=tuple(rows),
        columns=tuple(columns[k] for k in order),
        scores=scores[:, order],
        mean_ranks=ranks[order],
        friedman=friedman(scores),
        critical_difference=critical,
        groups=tuple(cliques(ranks[order], critical)),
    )


def rank_over_datasets(
    tables: Sequence[DatasetTable], *, alpha: float, lower_is_better: bool, rope: float = 0.01
) -> DatasetRanking | None:
    """The ranking, or None when fewer than two datasets share two encoders."""
    everyone = sorted({entry.name for table in tables for entry in table.entries})
    known = [{entry.name: entry.value for entry in table.entries} for table in tables]
    every = np.array([[values.get(name) for name in everyone] for values in known], dtype=np.float64)
    if len(tables) < 2 or len(everyone) < 2:
        return None
    block = ranked_block(every, alpha=alpha, lower_is_better=lower_is_better)
    if block is None:
        return None
    names = [everyone[k] for k in block.columns]
    ranked = [tables[k] for k in block.rows]
    left_out = [name for name in everyone if name not in names]
    listed = [everyone.index(name) for name in (*names, *left_out)]
    return DatasetRanking(
        names=tuple(names),
        datasets=tuple(table.dataset for table in ranked),
        mean_ranks=tuple(block.mean_ranks.tolist()),
        mean_values=tuple(block.scores.mean(axis=0).tolist()),
        friedman=block.friedman,
        critical_difference=block.critical_difference,
        nemenyi_p=tuple(map(tuple, nemenyi_p_values(block.mean_ranks, len(ranked)).tolist())),
        groups=tuple(tuple(names[k] for k in group) for group in block.groups),
        win_tie_loss=win_tie_loss([_shown(table, names, lower_is_better) for table in ranked]),
        left_out=tuple(left_out),
        notes=_notes(block.friedman, len(ranked), len(names), alpha),
        left_out_datasets=tuple(table.dataset for k, table in enumerate(tables) if k not in block.rows),
        run_on=tuple((everyone[k], int(np.isfinite(every[:, k]).sum())) for k in listed),
        rope=rope,
        chances=tuple(map(tuple, signed_ranks(every[:, listed], rope=rope, lower_is_better=lower_is_better))),
    )


def _shown(table: DatasetTable, names: list[str], lower_is_better: bool) -> list[list[float]]:
    """1 where the row is shown to be better than the column, -1 worse, 0 neither; NaN: not compared."""

    def outcome(first: str, second: str) -> float:
        pair = None if first == second else table.pair(first, second)
        if pair is None:
            return np.nan
        return float(np.sign(pair.difference)) * (-1 if lower_is_better else 1) if pair.holds else 0.0

    return [[outcome(first, second) for second in names] for first in names]


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
