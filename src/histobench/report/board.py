"""A leaderboard: encoders x datasets of one task, also over many splits."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.report.payload import facts_of, rounded
from histobench.report.table import DEFAULT_METRIC, TableResult
from histobench.roi.comparison.answer import answer, needs_splits
from histobench.roi.comparison.comparison import ranked_block
from histobench.roi.comparison.selection import by_task
from histobench.roi.comparison.splits_compared import (
    SplitTable,
    compare_splits,
    evidence_of_splits,
    prefer_splits,
)
from histobench.roi.comparison.table_statistics import ALPHA
from histobench.roi.metrics.metric_catalogue import described
from histobench.roi.options import LEAVE_ONE_GROUP_OUT
from histobench.roi.results.reader import split_runs

_STANDINGS = {"untested": 0, "best": 1, "tie": 2, "behind": 3}


@dataclass(frozen=True)
class Board:
    """Which runs stand together."""

    number: int
    task: str
    setting: str
    preset: str


def board_payload(
    board: Board,
    results: Sequence[TableResult],
    row_names: dict[int, str],
    over_splits: Sequence[SplitTable],
    commands: Mapping[int, str] | None = None,
    folder: str = "RESULTS",
) -> dict[str, Any]:
    """Answer, cells, tests and ranking of every metric; rows are names, columns numbers of datasets."""
    rows = list(dict.fromkeys(row_names[n] for r in results for n in _numbers(r)))
    place = {name: k for k, name in enumerate(rows)}
    columns = [result.dataset_index for result in results]
    metrics = dict.fromkeys(metric for result in results for metric in result.cells)
    runs = [[-1] * len(columns) for _ in rows]
    for column, result in enumerate(results):
        for number in _numbers(result):
            runs[place[row_names[number]]][column] = number
    return {
        "rows": rows,
        "datasets": columns,
        "runs": runs,
        "metrics": {
            metric: _metric(metric, results, rows, runs)
            | _answered(board, metric, results, over_splits, commands or {}, folder)
            for metric in metrics
        },
        "how": [result.how for result in results],
        "numImages": [result.n_images for result in results],
        "numGroups": [result.n_groups for result in results],
        # Under the table, so that no one takes an accuracy for more than it is.
        "problems": ["; ".join(filter(None, (result.problem, *result.caveats))) for result in results],
    }


def _numbers(result: TableResult) -> list[int]:
    return list(next(iter(result.cells.values()), {}))


def _metric(
    metric: str, results: Sequence[TableResult], rows: list[str], runs: list[list[int]]
) -> dict[str, Any]:
    cells = [
        [results[c].cells[metric].get(number) if number >= 0 else None for c, number in enumerate(row)]
        for row in runs
    ]
    values = [[None if cell is None else cell.value for cell in row] for row in cells]
    winners: list[dict[str, Any] | None] = []
    for column, result in enumerate(results):
        winner = dict(result.winners.get(metric, {}))
        row = [numbers[column] for numbers in runs].index(winner.pop("run")) if winner else -1
        winners.append({"row": row, **winner} if winner else None)
    return {
        "value": values,
        "low": [[None if cell is None else cell.low for cell in row] for row in cells],
        "high": [[None if cell is None else cell.high for cell in row] for row in cells],
        "standing": [[0 if cell is None else _STANDINGS[cell.standing] for cell in row] for row in cells],
        "ranks": [[None if cell is None else cell.ranks for cell in row] for row in cells],
        "mayBeBest": [[int(cell is not None and cell.may_be_best) for cell in row] for row in cells],
        "winners": winners,
        "tests": [list(result.tests.get(metric, ("", ""))) for result in results],
        "ranking": ranking(rows, values, lower_is_better=described(metric).lower_is_better),
    }


def _answered(
    board: Board,
    metric: str,
    results: Sequence[TableResult],
    over_splits: Sequence[SplitTable],
    commands: Mapping[int, str],
    folder: str,
) -> dict[str, Any]:
    """The answer that `histobench run` and `compare` print, and the commands for what it lacks.

    `commands`: by dataset, those that repeat the run over splits.
    """
    evidence = {result.dataset_index: result.evidence.get(metric) for result in results}
    known = {index: each for index, each in evidence.items() if each is not None}
    if not any(len(each.values) > 1 for each in known.values()) and all(
        len(_numbers(r)) < 2 for r in results
    ):
        return {"answer": "One encoder: nothing to compare. Add another one to the run.", "commands": []}
    what = described(metric)
    if not known and what.kind == "calibration":
        reason = "no known test of a calibration error holds its level"
        return {"answer": f"Differences of {what.title} are not tested: {reason}.", "commands": []}
    if not known:
        setting = f" --setting {shlex.quote(board.setting)}" if board.setting else ""
        command = f"histobench compare {shlex.quote(folder)} --task {board.task}{setting} --metric {metric}"
        return {"answer": f"Differences of {what.title} are tested on request:", "commands": [command]}
    splits = [evidence_of_splits(each) for each in over_splits if each.metric == metric]
    shown = {index: prefer_splits(each, splits) for index, each in known.items()}
    text = answer(list(shown.values()), task=board.task, metric=metric, setting=board.setting).text
    lacking = [index for index, each in shown.items() if needs_splits(each)]
    return {
        "answer": text,
        "commands": [commands[index] for index in lacking if commands.get(index)],
        "over": ", ".join(dict.fromkeys(each.splits for each in shown.values() if each.splits)),
    }


def ranking(
    names: Sequence[str], values: list[list[float | None]], *, lower_is_better: bool
) -> dict[str, Any] | None:
    """Mean ranks over the part of the table that has no gaps, as `histobench compare` has them."""
    table = np.array(values, dtype=np.float64).reshape(len(names), -1).T
    block = ranked_block(table, alpha=ALPHA, lower_is_better=lower_is_better)
    if block is None:
        return None
    return {
        "rows": list(block.columns),
        "ranks": [rounded(float(rank), 5) for rank in block.mean_ranks],
        "criticalDifference": rounded(block.critical_difference, 5),
        "groups": [list(group) for group in block.groups],
        "friedmanP": rounded(block.friedman.p_value, 4),
        "numDatasets": len(block.rows),
        "leftOut": [name for k, name in enumerate(names) if k not in block.columns],
        "leftOutColumns": [c for c in range(len(table)) if c not in block.rows],
    }


def split_tables(results_dir: Path) -> list[tuple[str, SplitTable]]:
    """The tables over splits with their presets; nothing where there are no splits.

    Single groups that were left out have no values of their own: they are compared by `compare --splits`.
    """
    try:
        runs = [run for run in split_runs(results_dir) if run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT]
    except (HistobenchError, OSError):
        return []
    found: list[tuple[str, SplitTable]] = []
    for (_, preset, _, _), members in by_task(runs).items():
        try:
            found += [(preset, table) for table in compare_splits(members, metric=DEFAULT_METRIC)]
        except HistobenchError:
            continue  # folds of other data; compare --splits says what differs
    return found


def split_payload(table: SplitTable, preset: str) -> dict[str, Any]:
    against = {pair.second: pair for pair in table.pairs if pair.first == table.entries[0].name}
    return {
        **facts_of(table, "task", "setting", "scheme"),
        "preset": preset,
        "metric": described(table.metric).title,
        "splits": table.n_splits,
        "pairs": len(table.pairs),
        "rows": [
            {
                "name": entry.name,
                "mean": rounded(entry.mean.mean),
                "low": rounded(entry.mean.low),
                "high": rounded(entry.mean.high),
                "least": rounded(entry.least),
                "greatest": rounded(entry.greatest),
                "rank": rounded(entry.mean_rank),
                "rankLow": entry.rank_low,
                "rankHigh": entry.rank_high,
                "first": rounded(entry.first),
                "behind": entry.name in against and against[entry.name].holds,
            }
            for entry in table.entries
        ],
        "notes": list(table.notes),
    }
