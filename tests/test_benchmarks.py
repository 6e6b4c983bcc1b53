"""A benchmark of which a part did not run ends with an error."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "speed"


@pytest.fixture
def extract(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("extract")


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_part_of_extract_is_an_error(
    extract: ModuleType,
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pipeline(*_: Any) -> dict[str, float]:
        if broken:
            raise ImportError("no histobench")
        return {"images_s": 2.0}

    monkeypatch.setattr(extract, "measure_pipeline", pipeline)
    monkeypatch.setattr(extract, "measure_plain", lambda *_: {"images_s": 1.0})
    case = extract.CPU_CASES[0].name
    arguments = ["extract.py", "--cpu", "--cases", case, "--scale", "0.001", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert extract.main() == int(broken)
    said = capsys.readouterr()
    assert ("FAILED: " in said.err) == broken
    assert ("bound_by" in said.out) != broken


def test_run_all_ends_with_an_error_if_a_benchmark_fails(
    extract: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = importlib.import_module("run_all")
    done = subprocess.CompletedProcess([], 3)
    monkeypatch.setattr(run_all.subprocess, "run", lambda *_, **__: done)
    lines = run_all.run_others(full=False)
    assert len(lines) == len(run_all.OTHERS)
    assert all(run_all.FAILED in line for line in lines)
