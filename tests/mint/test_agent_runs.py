"""Agents from Python: the same episodes as the command line plays, as tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError

pytestmark = pytest.mark.usefixtures("one_sandbox")


def test_python_plays_what_the_command_line_plays(
    make_data: Callable[[int], Path], make_recording: Callable[[int], Path], tmp_path: Path
) -> None:
    data, agent = make_data(10), f"replay:{make_recording(10)}"
    common = ["--data", str(data), "--tasks", "gsm8k", "--k", "1,2,5", "-o", str(tmp_path / "shell")]
    assert main(["mint", "run", "--agent", agent, *common]) == 0
    runs = hb.mint.run(agent, "gsm8k", k=(1, 2, 5), data=data, output=tmp_path / "python")
    assert runs.complete
    shell = hb.mint.open_runs(tmp_path / "shell")
    table = runs.table()
    assert table.equals(shell.table())
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
    assert "scripted" in repr(runs)
    assert "<table" in runs._repr_html_()


def test_a_wrong_option_is_named_as_python_spells_it(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="`max_tokens` must be at least 1"):
        hb.mint.run("local:", max_tokens=0, output=tmp_path)
    with pytest.raises(TypeError, match="'max_token'"):
        hb.mint.run("local:", max_token=5)


def test_the_command_line_says_it_as_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mint", "run", "--max-tokens", "0"]) == 2
    assert "--max-tokens must be at least 1" in capsys.readouterr().err
