"""The parts of the demo: agents, segmentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from histobench.cli.demo import (
    MASK_ENCODERS,
    SHORT,
    build_pages,
    play_consult,
    print_encoders,
    segmentation_plan,
)
from histobench.cli.main import main
from histobench.roi.plan.whole_benchmark import run_benchmark

pytestmark = pytest.mark.slow


def test_a_study_that_cannot_be_prepared_is_told_and_the_demo_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play_consult(tmp_path / "none.csv", tmp_path, Console(), SHORT) is None
    assert "left out: " in capsys.readouterr().out


@pytest.mark.nightly
def test_every_interval_that_the_demo_prints_is_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 0
    printed = capsys.readouterr().out
    found = re.findall(r"\[(\d*\.?\d+), ?(\d*\.?\d+)\]", printed)
    assert len(found) > 20
    for low, high in found:
        width = float(high) - float(low)
        assert width < (0.3 if "." in high else 30), (low, high)
    *_, look, following = printed.strip().splitlines()
    assert look.startswith("Look: ")
    assert following.startswith("Next: ")
    steps = [line for line in printed.splitlines() if re.match(r"\d/6 ", line)]
    assert len(steps) == 6


def test_segmentation_is_in_the_table_and_on_the_pages(tmp_path: Path) -> None:
    console = Console(record=True, width=100)
    print_encoders(run_benchmark(segmentation_plan(tmp_path, 0)), console)
    table = console.export_text()
    assert table.count("Segmentation") == 2, "the linear readout and the neighbors"
    assert all(name in table for name in MASK_ENCODERS)
    found = re.findall(r"\[(\S+), (\S+)\]", table)
    assert len(found) == 4
    assert all(float(high) - float(low) < 0.3 for low, high in found)
    page = build_pages(tmp_path, console)
    assert page is not None
    boards = [path.read_text(encoding="utf-8") for path in (page.parent / "data" / "board").iterdir()]
    assert any("Segmentation" in board for board in boards)
