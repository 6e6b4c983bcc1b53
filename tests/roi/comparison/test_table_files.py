"""A table that another process has made is the table that would be made here, or it is not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from histobench.core.record_files import read_record, write_record
from histobench.roi.comparison.comparison import compare_runs, dataset_table
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import load_runs
from histobench.roi.units.comparing import read_table, write_table

Write = Callable[..., Path]


def same(one: Any, other: Any) -> bool:
    """Field by field, with the type and bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    return repr(one) == repr(other)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, CompareSettings()),
        ({"groups": True}, CompareSettings("auroc")),
        ({}, CompareSettings("accuracy")),
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
    assert same(dataset_table("Colon", runs, settings), table)
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
    told = replace(runs[0], info={**runs[0].info, "caveats": ["of other labels"]})
    assert read_table(path, [told, *runs[1:]], settings) is None
    episodes = TaskFiles.beside(runs[0].path).episode_predictions
    episodes.write_bytes(b"other")
    assert read_table(path, runs, settings) is None
    episodes.unlink()
    whole = path.read_bytes()
    for damaged in (whole[:-200], whole.replace(b"Colon", b"\xff", 1), b"PK\x03\x04", b"{}"):
        path.write_bytes(damaged)
        assert read_table(path, runs, settings) is None
    path.write_bytes(whole)
    detailed = TaskFiles.beside(runs[1].path).detailed
    was = detailed.read_bytes()
    detailed.write_bytes(was.replace(b"0.1", b"0.2", 1))
    assert read_table(path, load_runs(results), settings) is None
    detailed.write_bytes(was)
    content = json.loads(runs[0].path.read_text())
    runs[0].path.write_text(json.dumps({**content, "num_samples": 1}))
    assert read_table(path, load_runs(results), settings) is None


@dataclass(frozen=True)
class Inner:
    values: tuple[float, ...]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    ranks: dict[str, tuple[int, int]]
    share: float
    found: Inner | None = None
    notes: tuple[str, ...] = ()


INNER = Inner((1.5, float("nan"), -0.0))
OUTER = Outer("a", INNER, {"a": (1, 2)}, 0.1 + 0.2, INNER, ("é",))


def test_a_record_comes_back_with_the_types_and_bits_it_had(tmp_path: Path) -> None:
    for record in (OUTER, replace(OUTER, found=None, notes=(), share=float("nan"))):
        write_record(tmp_path / "a.json", record, about={"of": ("x", 1)})
        assert same(record, read_record(tmp_path / "a.json", Outer, about={"of": ("x", 1)}))
        assert read_record(tmp_path / "a.json", Outer, about={"of": ("x", 2)}) is None
    first = (tmp_path / "a.json").read_bytes()
    write_record(tmp_path / "a.json", record, about={"of": ("x", 1)})
    assert (tmp_path / "a.json").read_bytes() == first
