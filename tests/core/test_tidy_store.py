"""The tidy table grows and is never lost."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.tidy_store import COLUMNS, append_rows, read_rows


def _row(seed: int) -> dict[str, object]:
    return {"dataset": "d", "encoder": "e", "task": "KNN", "metric": "accuracy", "value": 0.5, "seed": seed}


def _append_ten(path: str, start: int) -> None:
    for seed in range(start, start + 10):
        append_rows(path, [_row(seed)])


def test_rows_are_appended_in_order_with_every_column(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    append_rows(path, [_row(0)])
    append_rows(path, [_row(1), _row(2) | {"value": None}])
    rows = read_rows(path)
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert list(rows[0]) == list(COLUMNS)
    assert rows[2]["value"] is None


def test_two_processes_do_not_drop_each_others_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    context = get_context("spawn")
    workers = [context.Process(target=_append_ten, args=(str(path), start)) for start in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(row["seed"] for row in read_rows(path)) == [*range(10), *range(100, 110)]


def test_a_damaged_table_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(HistobenchError, match=r"results\.parquet"):
        append_rows(path, [_row(0)])
    assert path.read_bytes() == b"PAR1 nonsense"
