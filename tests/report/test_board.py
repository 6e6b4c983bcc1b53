"""Ranks and critical differences agree with `histobench compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.report.board import Board, board_payload, ranking
from histobench.report.table import TableCell, TableResult
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.selection import select_runs
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs


@pytest.mark.slow
def test_the_ranking_is_that_of_compare(
    results: Path, site: Path, data_of: Callable[[Path, str], Any]
) -> None:
    runs = select_runs(load_runs(results), task="Linear-Probe")
    expected = compare_runs(runs, CompareSettings()).ranking
    assert expected is not None
    board = data_of(site, "board/0")
    found = board["metrics"]["balanced_accuracy"]["ranking"]
    names = [board["rows"][row] for row in found["rows"]]
    assert dict(zip(names, found["ranks"], strict=True)) == pytest.approx(
        dict(zip(expected.names, expected.mean_ranks, strict=True))
    )
    assert found["criticalDifference"] == pytest.approx(expected.critical_difference, rel=1e-4)
    assert found["friedmanP"] == pytest.approx(expected.friedman.p_value, rel=1e-3)
    assert {frozenset(names[k] for k in group) for group in found["groups"]} == {
        frozenset(group) for group in expected.groups
    }


def test_lower_is_better_turns_the_ranks() -> None:
    values: list[list[float | None]] = [[0.1, 0.2], [0.3, 0.4], [0.5, None]]
    up = ranking(["a", "b", "c"], values, lower_is_better=False)
    down = ranking(["a", "b", "c"], values, lower_is_better=True)
    assert up is not None
    assert down is not None
    assert (up["rows"], down["rows"]) == ([1, 0], [0, 1])
    assert up["leftOut"] == ["c"]
    assert ranking(["a", "b"], [[0.1], [0.2]], lower_is_better=False) is None  # one dataset


@pytest.mark.parametrize(("runs", "said"), [(1, "One encoder: "), (2, "Differences of ")])
def test_two_encoders_that_cannot_be_tested_are_not_called_one(runs: int, said: str) -> None:
    cells = dict.fromkeys(range(runs), TableCell(0.1, None, None, "untested"))
    result = TableResult(0, 0, cells={"ece": cells})
    found = board_payload(Board(0, "KNN", "", "uni"), [result], {0: "a", 1: "b"}, [])
    assert found["metrics"]["ece"]["answer"].startswith(said)


@pytest.mark.slow
def test_cells_hold_what_the_results_files_say(
    results: Path, site: Path, data_of: Callable[[Path, str], Any]
) -> None:
    overview, board = data_of(site, "site"), data_of(site, "board/0")
    for run in select_runs(load_runs(results), task="Linear-Probe"):
        row = board["rows"].index(run.identity.encoder)
        column = [overview["datasets"][d]["name"] for d in board["datasets"]].index(run.identity.dataset)
        for metric in ("accuracy", "auroc", "log_loss", "ece"):
            assert board["metrics"][metric]["value"][row][column] == pytest.approx(
                run.metrics[metric], rel=1e-5
            )
    shown = board["metrics"]["balanced_accuracy"]
    for column, place in enumerate(board["datasets"]):
        dataset = overview["datasets"][place]["name"]
        chosen = select_runs(load_runs(results), task="Linear-Probe", dataset=dataset)
        (table,) = compare_runs(chosen, CompareSettings()).tables
        assert table.standings is not None
        winner = table.standings.winner
        for entry in table.entries:
            row = board["rows"].index(entry.name)
            cell = [shown[name][row][column] for name in ("value", "low", "high")]
            assert cell == pytest.approx([entry.value, entry.interval.low, entry.interval.high], rel=1e-5)
            assert tuple(shown["ranks"][row][column]) == table.standings.ranks[entry.name]
            assert shown["mayBeBest"][row][column] == (entry.name in table.standings.best)
            if entry.name == winner.name:
                best = {"row": row, "value": winner.value, "low": winner.interval.low}
                assert shown["winners"][column] == pytest.approx(
                    best | {"high": winner.interval.high}, rel=1e-5
                )
