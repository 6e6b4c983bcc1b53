"""Encoders over several datasets: mean ranks, Friedman, Nemenyi and wins, ties and losses."""

from __future__ import annotations

from dataclasses import dataclass

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
)
from histobench.statistics.tests import SignedRank

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
