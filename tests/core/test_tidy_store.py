"""The tidy table grows and is never lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.tidy_store import COLUMNS, append_rows, read_rows


def _row(seed: int) -> dict[str, object]:
    return {"dataset": "d", "encoder": "e", "task": "KNN", "metric": "accuracy", "value": 0.5, "seed": seed}


_APPEND = """
import json, sys
from histobench.core.tidy_store import append_rows
for row in json.loads(sys.argv[2]):
    append_rows(sys.argv[1], [row])
"""


def test_rows_are_appended_in_order_with_every_column(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    append_rows(path, [_row(0)])
    append_rows(path, [_row(1), _row(2) | {"value": None}])
    rows = read_rows(path)
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert list(rows[0]) == list(COLUMNS)
    assert rows[2]["value"] is None


def test_a_number_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    append_rows(path, [_row(0), _row(1)])
    append_rows(path, [_row(0) | {"value": 0.6, "date": "later"}])
    assert [(row["seed"], row["value"]) for row in read_rows(path)] == [(1, 0.5), (0, 0.6)]
    append_rows(path, [_row(0) | {"fingerprint": "other features"}])
    assert len(read_rows(path)) == 3


def test_processes_neither_drop_nor_double_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    everybody = [[_row(seed) for seed in range(start, start + 10)] for start in (0, 100, 0)]
    workers = [
        subprocess.Popen([sys.executable, "-c", _APPEND, str(path), json.dumps(rows)]) for rows in everybody
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert sorted(row["seed"] for row in read_rows(path)) == [*range(10), *range(100, 110)]


def test_a_damaged_table_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(HistobenchError, match=r"results\.parquet"):
        append_rows(path, [_row(0)])
    assert path.read_bytes() == b"PAR1 nonsense"
