"""The published leaderboard comes out of the recorded outcomes, digit for digit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.result_tables import leaderboard
from histobench.mint.results.uncertainty import rate_by_budget, trend


def _episode(k: int, success: bool, *, task: str = "gsm8k", feedback: str = "None") -> EpisodeOutcome:
    kind = "None" if feedback == "None" else "no_GT-textual"
    return EpisodeOutcome("m", feedback, kind, k, task, "0", success)


@pytest.mark.slow
def test_the_verb_writes_the_published_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[2] / "data" / "reference" / "mint" / "replay"
    table = tmp_path / "table.json"
    assert main(["mint", "table", str(folder / "episode_outcomes.csv.gz"), "--json", str(table)]) == 0
    expected = json.loads((folder / "expected_metrics.json").read_text(encoding="utf-8"))
    written = json.loads(table.read_text(encoding="utf-8"))
    assert {model: written[model] for model in expected} == expected
    shown = capsys.readouterr().out
    for numbers in expected.values():
        (line,) = [line for line in shown.splitlines() if line.split()[0] == numbers["published_name"]]
        assert [f"{rate:.2f}" for rate in numbers["SR"].values()] == line.split()[1:6]


def test_the_trend_is_the_least_squares_line() -> None:
    rates = {1: 3.0, 2: 20.5, 3: 31.0, 4: 33.25, 5: 41.0}
    line = trend(rates)
    assert line is not None
    slope, _ = np.polyfit(list(rates), list(rates.values()), 1)
    correlation = np.corrcoef(list(rates), list(rates.values()))[0, 1]
    assert line.slope == pytest.approx(slope, abs=0.006)
    assert line.r2 == pytest.approx(correlation**2, abs=0.006)


def test_every_episode_weighs_the_same() -> None:
    outcomes = [_episode(5, True), *[_episode(5, False, task="mbpp")] * 3]
    assert rate_by_budget(outcomes) == {5: 25.0}


def test_feedback_of_another_expert_is_not_mixed_in() -> None:
    outcomes = [_episode(5, False), _episode(5, True, feedback="claude-2")]
    assert leaderboard(outcomes)[0].feedback_gain is None
    assert leaderboard(outcomes, feedback_model="claude-2")[0].feedback_gain == 100.0
