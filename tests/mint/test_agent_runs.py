"""Agents from Python: the same episodes as the command line plays, as tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, write_outcome_table

pytestmark = pytest.mark.usefixtures("one_sandbox")


@pytest.mark.slow
def test_python_plays_what_the_command_line_plays(
    make_data: Callable[[int], Path], make_recording: Callable[[int], Path], tmp_path: Path
) -> None:
    data, agent = make_data(10), f"replay:{make_recording(10)}"
    common = ["--data", str(data), "--tasks", "gsm8k", "--k", "1,2,5", "-o", str(tmp_path / "shell")]
    assert main(["mint", "run", "--agent", agent, *common]) == 0
    runs = hb.mint.run(agent, "gsm8k", k=(1, 2, 5), data=data, results=tmp_path / "python")
    assert runs.complete
    shell = hb.mint.open_runs(tmp_path / "shell")
    table = runs.to_frame()
    assert table.equals(shell.to_frame())
    assert list(table["k"]) == [1, 2, 5]
    assert set(table["dataset"]) == {"gsm8k"}
    episodes = runs.episodes()
    for row in table.itertuples():
        chosen = episodes[episodes["k"] == row.k]
        assert row.episodes == len(chosen) == 10
        assert row.success == chosen["success"].mean()
        assert row.low <= row.success <= row.high
    board = runs.leaderboard()
    assert board.loc[0, "SR5"] == pytest.approx(100 * table["success"].iloc[-1])
    assert hb.mint.table(tmp_path / "shell").equals(table)
    assert "scripted" in repr(runs)
    assert "<table" in runs._repr_html_()


def test_a_wrong_option_is_named_as_python_spells_it(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="max_tokens: expected a whole number of at least 1, found 0"):
        hb.mint.run("local:", max_tokens=0, results=tmp_path)
    with pytest.raises(HistobenchError, match="'max_token'; did you mean max_tokens"):
        hb.mint.run("local:", max_token=5)


def test_two_agents_are_compared_on_the_tasks_that_both_have_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    solved = {"one": draw.random(40) < 0.8, "two": draw.random(30) < 0.5}
    table = tmp_path / "outcomes.csv"
    write_outcome_table(
        table,
        [
            EpisodeOutcome(model, NO_FEEDBACK, "None", 5, "gsm8k", str(task), bool(success))
            for model, successes in solved.items()
            for task, success in enumerate(successes)
        ],
    )
    compared = hb.mint.compare(table, "one", "two").set_index("tasks")
    assert list(compared.index) == ["all", "reasoning", "gsm8k"]
    first, second = solved["one"][:30].astype(float), solved["two"].astype(float)
    row = compared.loc["gsm8k"]
    assert (row["n"], row["first"], row["second"]) == (30, first.mean(), second.mean())
    assert row["difference"] == pytest.approx((first - second).mean())
    assert row["low"] < row["difference"] < row["high"]
    assert (row["p"] < 0.05) == (row["low"] > 0 or row["high"] < 0)
    assert main(["mint", "compare", str(table), "--first", "one", "--second", "two"]) == 0
    assert f"{100 * first.mean():.1f} %" in capsys.readouterr().out
    with pytest.raises(HistobenchError, match="no episodes of 'ome' with k = 5; did you mean one"):
        hb.mint.compare(hb.mint.open_runs(table), "ome", "two")
