"""Agents from Python: the same episodes as the command line plays, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, write_outcome_table

pytestmark = pytest.mark.usefixtures("one_sandbox")


@pytest.mark.slow
def test_python_plays_what_the_command_line_plays(lab: Any) -> None:
    data, agent = lab.make_data(10), f"replay:{lab.make_recording(10)}"
    common = ["--data", str(data), "--tasks", "gsm8k", "--k", "1..2,5", "-o", str(lab.tmp_path / "shell")]
    assert main(["mint", "run", "--agent", agent, *common]) == 0
    runs = hb.mint.run(agent, "gsm8k", k=(1, 2, 5), data=data, results=lab.tmp_path / "python")
    assert runs.complete
    shell = hb.mint.open_runs(lab.tmp_path / "shell")
    table = runs.to_frame()
    assert table.equals(shell.to_frame())
    assert list(table["k"]) == [1, 2, 5]
    assert set(table["dataset"]) == {"gsm8k"}
    assert len(runs.episodes()) == 3 * 10
    board = runs.leaderboard()
    assert board.loc[0, "SR5"] == pytest.approx(100 * table["success"].iloc[-1])
    assert hb.mint.table(lab.tmp_path / "shell").equals(table)
    assert "scripted" in repr(runs)
    assert "<table" in runs._repr_html_()


def test_a_wrong_option_is_named_as_python_spells_it(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="max_tokens: expected a whole number of at least 1, found 0"):
        hb.mint.run("local:", max_tokens=0, results=tmp_path)
    with pytest.raises(HistobenchError, match="'max_token'; did you mean max_tokens"):
        hb.mint.run("local:", max_token=5)


def test_two_agents_are_compared_on_the_tasks_that_both_have_played(lab: Any) -> None:
    draw = np.random.default_rng(0)
    solved = {"one": draw.random(40) < 0.8, "two": draw.random(30) < 0.5}
    table = lab.tmp_path / "outcomes.csv"
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
    lab.monkeypatch.setenv("COLUMNS", "200")
    assert main(["mint", "compare", str(table), "--first", "one", "--second", "two"]) == 0
    printed = [" ".join(line.split()) for line in lab.capsys.readouterr().out.splitlines()]
    holm = multipletests(compared["p"], method="holm")[1]
    for (name, row), corrected in zip(compared.iterrows(), holm, strict=True):
        assert row["p (Holm)"] == pytest.approx(corrected)
        rates = f"{name} 30 {100 * row['first']:.1f} % {100 * row['second']:.1f} %"
        span = f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"
        numbers = f"{100 * row['difference']:+.1f} {span} {row['p']:.3g} {row['p (Holm)']:.3g}"
        assert any(line.startswith(f"{rates} {numbers}") for line in printed)
    with pytest.raises(HistobenchError, match="no episodes of 'ome' with k = 5; did you mean one"):
        hb.mint.compare(hb.mint.open_runs(table), "ome", "two")
