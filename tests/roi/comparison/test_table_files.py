"""A table that another process has made is the table that would be made here, or it is not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histobench.core.dataclass_values import as_plain, from_plain
from histobench.roi.comparison.comparison import CompareSettings, DatasetTable, compare_runs, dataset_table
from histobench.roi.comparison.table_files import read_table, write_table
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import load_runs

Write = Callable[..., Path]


def assert_equal(one: Any, other: Any) -> None:
    """Field by field, with the type and bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    if is_dataclass(one):
        assert type(one) is type(other)
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, tuple | list):
        assert isinstance(other, tuple | list)
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_equal(first, second)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_equal(list(one.values()), list(other.values()))
    else:
        assert repr(one) == repr(other) or (isinstance(one, np.generic) and repr(one.item()) == repr(other))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, CompareSettings()),
        ({"groups": True}, CompareSettings("auroc", test="delong")),
        ({}, CompareSettings("accuracy", test="mcnemar")),
        ({"n": 4}, CompareSettings()),  # too little for most intervals
        ({"task": "Few-shot", "setting": "3way_4shot", "episodes": 6}, CompareSettings()),
    ],
)
def test_a_stored_table_is_the_one_that_was_made(
    write_run: Write, tmp_path: Path, options: dict[str, Any], settings: CompareSettings
) -> None:
    for encoder, signal in (("alpha", 2.0), ("beta", 1.2), ("gamma", 0.4)):
        write_run(encoder, signal, **options)
    runs = load_runs(tmp_path / "results")
    write_table(tmp_path / "table.json", "Colon", runs, settings)
    table = read_table(tmp_path / "table.json", runs, settings)
    assert table is not None
    assert_equal(dataset_table("Colon", runs, settings), table)
    assert compare_runs(runs, settings, table_of=lambda *_: table).tables == (table,)


def test_a_table_of_other_runs_or_settings_is_not_used(write_run: Write, tmp_path: Path) -> None:
    results, settings, path = tmp_path / "results", CompareSettings(), tmp_path / "table.json"
    for encoder, signal in (("alpha", 2.0), ("beta", 1.2)):
        write_run(encoder, signal)
    runs = load_runs(results)
    assert read_table(path, runs, settings) is None  # there is none
    write_table(path, "Colon", runs, settings)
    assert read_table(path, load_runs(results), settings) is not None
    assert read_table(path, runs, CompareSettings("accuracy")) is None
    assert read_table(path, runs[:1], settings) is None
    assert read_table(path, runs[::-1], settings) is None
    whole = path.read_text()
    path.write_text(whole.replace("0.9", "0.8", 1))  # one figure of it is damaged
    assert path.read_text() != whole
    assert read_table(path, runs, settings) is None
    path.write_text(whole)
    detailed = TaskFiles.beside(runs[1].path).detailed
    was = detailed.read_bytes()
    detailed.write_bytes(was.replace(b"0.1", b"0.2", 1))
    assert read_table(path, load_runs(results), settings) is None
    detailed.write_bytes(was)
    content = json.loads(runs[0].path.read_text())
    runs[0].path.write_text(json.dumps({**content, "num_samples": 1}))
    assert read_table(path, load_runs(results), settings) is None


def test_what_is_no_table_is_refused() -> None:
    for plain in (None, [], [1], {"dataset": "d"}, ["d", 3, [], 1, None, "", 0, ""]):
        with pytest.raises(ValueError, match="no DatasetTable"):
            from_plain(DatasetTable, plain)
    assert as_plain(np.float64("nan")) != as_plain(np.float64("nan"))
