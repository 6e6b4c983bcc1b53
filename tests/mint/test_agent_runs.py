"""Agents from Python: the same episodes as the command line plays, as tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome, write_outcome_table
from histobench.mint.runs.run_options import RunOptions

pytestmark = pytest.mark.usefixtures("one_sandbox")


@pytest.mark.slow
def test_python_plays_what_the_command_line_plays(
    make_data: Callable[[int], Path], make_recording: Callable[[int], Path], tmp_path: Path
) -> None:
    data, agent = make_data(10), f"replay:{make_recording(10)}"
    common = ["--data", str(data), "--tasks", "gsm8k", "--k", "1,2,5", "-o", str(tmp_path / "shell")]
    assert main(["mint", "run", "--agent", agent, *common]) == 0
    runs = hb.mint.run(agent, "gsm8k", k=(1, 2, 5), data=data, output=tmp_path / "python")
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
    with pytest.raises(HistobenchError, match="`max_tokens`: expected a whole number of at least 1, found 0"):
        hb.mint.run("local:", max_tokens=0, output=tmp_path)
    with pytest.raises(TypeError, match="'max_token'"):
        hb.mint.run("local:", max_token=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent": 3}, "agent: expected a text, found 3"),
        ({"agent": ""}, "agent: expected a text"),
        ({"tasks": None}, "tasks: expected a text or a list of texts, found None"),
        ({"tasks": []}, "tasks: give at least one"),
        ({"k": []}, "k: give at least one number"),
        ({"k": 2.5}, "k: expected a whole number of at least 1, found 2.5"),
        ({"k": None}, "k: expected a whole number of at least 1, found None"),
        ({"calls": "nativ"}, "`calls` 'nativ' is unknown; did you mean native"),
        ({"calls": None}, "`calls`: expected one of text, native, found None"),
        ({"limit": "3"}, "`limit`: expected a whole number of at least 1, found '3'"),
        ({"limit": True}, "`limit`: expected a whole number of at least 1, found True"),
        ({"repeat": None}, "`repeat`: expected a whole number of at least 1, found None"),
        ({"concurrency": 1.5}, "`concurrency`: expected a whole number of at least 1, found 1.5"),
        ({"temperature": "hot"}, "`temperature`: expected a number of at least 0, found 'hot'"),
        ({"max_cost": "5"}, "`max_cost`: expected a number above 0, found '5'"),
        ({"seed": "x"}, "`seed`: expected a whole number, found 'x'"),
        ({"gt": "yes"}, "`gt`: expected True or False, found 'yes'"),
        ({"feedback": None}, "`feedback`: expected a text, found None"),
        ({"feedback_form": "x"}, "`feedback_form` 'x' is unknown"),
        ({"balance": "x"}, "`balance` 'x' is unknown"),
        ({"reasoning_history": "x"}, "`reasoning_history` 'x' is unknown"),
        ({"data": 3}, "`data`: expected a text, found 3"),
        ({"output": 3}, "`output`: expected a text, found 3"),
    ],
)
def test_an_option_of_another_kind_is_refused_before_anything_is_written(
    given: dict[str, object], said: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "agent": "openai:m@http://127.0.0.1:9/v1",
        "output": tmp_path / "out",
        **given,
    }
    with pytest.raises(HistobenchError) as refused:
        hb.mint.run(**options)
    assert str(refused.value).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(HistobenchError, match=r"output: .*notes\.txt is a file; give a folder"):
        hb.mint.run("openai:m@http://127.0.0.1:9/v1", output=file)
    with pytest.raises(HistobenchError, match="folder: expected a path, found 3"):
        hb.mint.open_runs(3)  # type: ignore[arg-type]


def test_a_table_of_something_else_is_told_by_the_column_that_it_has_not(tmp_path: Path) -> None:
    table = tmp_path / "images.csv"
    table.write_text("image,label\na.png,tumour\n")
    with pytest.raises(HistobenchError, match="no column 'model'; it has: image, label"):
        hb.mint.open_runs(table)


def test_numbers_of_numpy_are_numbers() -> None:
    chosen = RunOptions(limit=np.int64(3), temperature=np.float32(0.5), max_cost=2)  # type: ignore[arg-type]
    assert (chosen.limit, chosen.temperature, chosen.max_cost) == (3, 0.5, 2)
    assert {type(chosen.limit), type(chosen.temperature)} == {int, float}


def test_the_command_line_says_it_as_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mint", "run", "--max-tokens", "0"]) == 2
    assert "--max-tokens: expected a whole number of at least 1, found '0'" in capsys.readouterr().err


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
