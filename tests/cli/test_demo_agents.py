"""The parts of the demo: agents, segmentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from histobench.cli.demo import SHORT, play_consult
from histobench.cli.main import main

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
    assert printed.count("Segmentation") == 2, "the linear readout and the neighbors"
    boards = (tmp_path / "demo" / "site" / "data" / "board").iterdir()
    assert any("Segmentation" in path.read_text(encoding="utf-8") for path in boards)
