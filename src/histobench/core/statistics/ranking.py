"""Many models on many datasets: mean ranks, Friedman's test, Nemenyi's critical difference, wins and ties."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Friedman:
    """Are the mean ranks more different than chance makes them?"""

    statistic: float  # chi-squared, corrected for ties
    p_value: float
    f_statistic: float  # Iman and Davenport's, less conservative with few datasets
    f_p_value: float


@dataclass(frozen=True)
class WinTieLoss:
    """On how many datasets row is shown to be better than column, neither is shown, or worse."""

    wins: NDArray[np.int64]  # [m, m]
    ties: NDArray[np.int64]
    losses: NDArray[np.int64]


def ranks(scores: ArrayLike, *, higher_is_better: bool = True) -> Floats:
    """Ranks within each dataset (row), 1 for the best, equal scores share their mean rank.

    >>> ranks([[0.9, 0.8, 0.9]]).tolist()
    [[1.5, 3.0, 1.5]]
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.asarray(stats.rankdata(-values if higher_is_better else values, axis=1), dtype=np.float64)


def mean_ranks(scores: ArrayLike, *, higher_is_better: bool = True) -> Floats:
    """Each model's mean rank over the datasets; `scores` are [datasets, models]."""
    return ranks(scores, higher_is_better=higher_is_better).mean(axis=0)


def friedman(scores: ArrayLike) -> Friedman:
    """Friedman's test with correction for ties, and Iman and Davenport's F version."""
    ranked = ranks(scores)
    n_datasets, n_models = ranked.shape
    if n_datasets < 2 or n_models < 2:
        raise ValueError("Friedman's test needs at least two datasets and two models")
    spread = float(((ranked - (n_models + 1) / 2) ** 2).sum())
    if spread == 0:  # every dataset is one big tie
        return Friedman(0.0, 1.0, 0.0, 1.0)
    deviation = ranked.sum(axis=0) - n_datasets * (n_models + 1) / 2
    statistic = float((n_models - 1) * (deviation**2).sum() / spread)
    p_value = float(stats.chi2.sf(statistic, n_models - 1))
    rest = n_datasets * (n_models - 1) - statistic
    if rest <= 1e-9:  # all datasets agree on the order: F has no value, the chance of that is counted
        return Friedman(statistic, p_value, float("inf"), _chance_of_agreement(n_models, n_datasets))
    f_statistic = (n_datasets - 1) * statistic / rest
    f_p_value = float(stats.f.sf(f_statistic, n_models - 1, (n_models - 1) * (n_datasets - 1)))
    return Friedman(statistic, p_value, f_statistic, f_p_value)


def nemenyi_critical_difference(n_models: int, n_datasets: int, *, alpha: float = 0.05) -> float:
    """Mean ranks at least this far apart differ (Demšar 2006); studentized range with infinite freedom.

    >>> round(nemenyi_critical_difference(4, 14, alpha=0.05), 2)
    1.25
    """
    return _critical_range(n_models, alpha) * _rank_error(n_models, n_datasets)


def nemenyi_p_values(average_ranks: ArrayLike, n_datasets: int) -> Floats:
    """p-values of all pairs of models, [m, m], corrected for the number of models."""
    average = np.asarray(average_ranks, dtype=np.float64)
    distance = np.abs(average[:, None] - average[None, :]) / _rank_error(len(average), n_datasets)
    p_values = stats.studentized_range.sf(distance * np.sqrt(2), len(average), np.inf)
    return np.clip(np.asarray(p_values, dtype=np.float64), 0.0, 1.0)


def cliques(average_ranks: ArrayLike, critical_difference: float) -> list[tuple[int, ...]]:
    """The largest groups of models, best first, within which no two differ.

    >>> cliques([1.0, 1.8, 3.0], 1.5)
    [(0, 1), (1, 2)]
    """
    average = np.asarray(average_ranks, dtype=np.float64)
    order = np.argsort(average, kind="stable")
    found: list[tuple[int, ...]] = []
    last_end = 0
    for start in range(len(order)):
        end = start
        while end < len(order) and average[order[end]] - average[order[start]] < critical_difference:
            end += 1
        if end - start > 1 and end > last_end:
            found.append(tuple(int(index) for index in order[start:end]))
        last_end = max(last_end, end)
    return found


def win_tie_loss(better: ArrayLike) -> WinTieLoss:
    """Counts over datasets from `better` [datasets, m, m]: 1 where the row is shown to be better than the
    column, -1 where it is shown to be worse, 0 where neither is; NaN where they were not compared.

    >>> win_tie_loss([[[np.nan, 1], [-1, np.nan]], [[np.nan, 0], [0, np.nan]]]).wins.tolist()
    [[0, 1], [0, 0]]
    """
    shown = np.asarray(better, dtype=np.float64)
    return WinTieLoss(*((shown == outcome).sum(axis=0) for outcome in (1, 0, -1)))


def complete_block(present: ArrayLike) -> tuple[list[int], list[int]]:
    """Datasets (rows) and models (columns) of a table with gaps that make a table without gaps.

    The row or column with the largest share of gaps is taken out until none is left, of equals a dataset
    before a model, the last one first. So a dataset that hardly anybody was run on does not cost the models,
    and a model that was hardly run does not cost the datasets.

    >>> complete_block([[True, True, True], [True, True, True], [True, False, False]])
    ([0, 1], [0, 1, 2])
    """
    there = np.asarray(present, dtype=bool)
    rows, columns = list(range(there.shape[0])), list(range(there.shape[1]))
    while rows and columns and not (block := there[np.ix_(rows, columns)]).all():
        gaps_of_row, gaps_of_column = (~block).mean(axis=1), (~block).mean(axis=0)
        if gaps_of_row.max() >= gaps_of_column.max():
            rows.pop(int(np.flatnonzero(gaps_of_row == gaps_of_row.max())[-1]))
        else:
            columns.pop(int(np.flatnonzero(gaps_of_column == gaps_of_column.max())[-1]))
    return (rows, columns) if rows and columns else ([], [])


def _chance_of_agreement(n_models: int, n_datasets: int) -> float:
    """That all datasets have the order of the first: 1 / (m!)^(n - 1)."""
    return math.exp(-(n_datasets - 1) * math.lgamma(n_models + 1))


@lru_cache(maxsize=256)
def _critical_range(n_models: int, alpha: float) -> float:
    return float(stats.studentized_range.ppf(1 - alpha, n_models, np.inf)) / 2**0.5


def _rank_error(n_models: int, n_datasets: int) -> float:
    return float(np.sqrt(n_models * (n_models + 1) / (6 * n_datasets)))
