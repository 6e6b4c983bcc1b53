"""The language-model part of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from histobench.cli.demo import FULL, SHORT, DemoSize, play_agents, play_consult
from histobench.core.errors import HistobenchError

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_without_the_model_the_demo_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(path: str | None = None) -> Path:
        raise HistobenchError("the local model could not be fetched (no network)")

    monkeypatch.setattr("histobench.mint.agents.factory.find_model", missing)
    assert len(play_agents(tmp_path, Console(), FULL)) == 1  # the replayed episodes
    assert "left out: the local model could not be fetched (no network)" in capsys.readouterr().out


def test_a_study_that_cannot_be_prepared_is_told_and_the_demo_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play_consult(tmp_path / "none.csv", tmp_path, Console(), SHORT) is None
    assert "left out: " in capsys.readouterr().out


@pytest.mark.parametrize("size", [SHORT, FULL], ids=["short", "full"])
def test_the_demo_has_enough_patients_cases_and_episodes_for_narrow_intervals(size: DemoSize) -> None:
    from histobench.mint import runs

    assert size.test // size.tiles_per_patient >= 24
    assert size.cases >= 120
    assert size.robustness == size.language_model, "the index of 24 patients has a wide interval"
    questions = Path(runs.__file__).parent / "demo_recording" / "gsm8k" / "test_prompts.json"
    assert len(questions.read_text(encoding="utf-8").splitlines()) == 48
