"""The tidy table has every column, and damage to it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.tidy_rows import COLUMNS, read_rows, write_rows


def _row(seed: int) -> dict[str, object]:
    return {"dataset": "d", "encoder": "e", "task": "KNN", "metric": "accuracy", "value": 0.5, "seed": seed}


def test_rows_come_back_in_order_with_every_column(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    write_rows(path, [_row(0)])
    write_rows(path, [_row(1), _row(2) | {"value": None}])
    rows = read_rows(path)
    assert [row["seed"] for row in rows] == [1, 2]
    assert list(rows[0]) == list(COLUMNS)
    assert rows[1]["value"] is None


def test_a_damaged_table_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(HistobenchError, match=r"results\.parquet.*made from the JSON files"):
        read_rows(path)
