"""What a results folder holds: runs, sorted into boards and datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.text import natural_order
from histobench.report.board import Board
from histobench.roi.comparison.selection import distinct_names
from histobench.roi.results.changed_data import changes_told
from histobench.roi.results.reader import read_run, results_files
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import task_place


@dataclass(frozen=True)
class Inventory:
    """Runs by number, the boards and datasets they stand on, and files that could not be read."""

    runs: tuple[StoredRun, ...]
    board_of: tuple[int, ...]
    dataset_of: tuple[int, ...]
    row_names: tuple[str, ...]  # what each run is called in its table
    boards: tuple[Board, ...]
    datasets: tuple[str, ...]
    encoders: tuple[str, ...]
    unreadable: tuple[str, ...]

    @property
    def tables(self) -> dict[tuple[int, int], list[int]]:
        """(board, dataset) -> numbers of runs, boards first."""
        return dict(sorted(_tables(self.board_of, self.dataset_of).items()))


def _tables(board_of: Sequence[int], dataset_of: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    tables: dict[tuple[int, int], list[int]] = {}
    for number, place in enumerate(zip(board_of, dataset_of, strict=True)):
        tables.setdefault(place, []).append(number)
    return tables


def take_inventory(results_dir: Path) -> Inventory:
    """Read every results file under a folder; a damaged one is listed and does not stop the others."""
    runs: list[StoredRun] = []
    unreadable: list[str] = []
    for path in results_files(results_dir):
        try:
            run = read_run(path)
            # Without a name of its own, a dataset goes by the folder.
            dataset = run.identity.dataset or results_dir.name
            encoder = run.identity.encoder or "unknown"
            runs.append(replace(run, identity=replace(run.identity, dataset=dataset, encoder=encoder)))
        except (HistobenchError, OSError) as error:
            unreadable.append(without_folder(str(error), results_dir))
    runs = changes_told(runs)
    known = sorted(
        {(run.task, run.setting, run.identity.preset) for run in runs},
        key=lambda key: (task_place(key[0]), natural_order(key[1]), key[2]),
    )
    boards = [Board(number, *key) for number, key in enumerate(known)]
    place = {(board.task, board.setting, board.preset): board.number for board in boards}

    def board(run: StoredRun) -> int:
        return place[run.task, run.setting, run.identity.preset]

    def order(run: StoredRun) -> tuple[Any, ...]:
        return (_in_order(run.identity.dataset), _in_order(run.identity.encoder), board(run), run.path)

    runs.sort(key=order)
    board_of = list(map(board, runs))
    datasets = list(dict.fromkeys(run.identity.dataset for run in runs))
    dataset_of = [datasets.index(run.identity.dataset) for run in runs]
    return Inventory(
        runs=tuple(runs),
        board_of=tuple(board_of),
        dataset_of=tuple(dataset_of),
        row_names=_row_names(runs, board_of, dataset_of, results_dir),
        boards=tuple(boards),
        datasets=tuple(datasets),
        encoders=tuple(sorted({run.identity.encoder for run in runs}, key=_in_order)),
        unreadable=tuple(unreadable),
    )


def _in_order(name: str) -> list[str | int]:
    return natural_order(name.lower())


def _row_names(
    runs: Sequence[StoredRun], board_of: Sequence[int], dataset_of: Sequence[int], results_dir: Path
) -> tuple[str, ...]:
    names = [""] * len(runs)
    for members in _tables(board_of, dataset_of).values():
        for number, name in zip(members, distinct_names([runs[number] for number in members]), strict=True):
            names[number] = without_folder(name, results_dir)
    return tuple(names)


def without_folder(text: str, results_dir: Path) -> str:
    """A site may be public: paths are shown from the results folder on."""
    return text.replace(f"{results_dir.as_posix()}/", "")
