"""Results for other programs, and theirs for the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import in_a_thread
from histobench.cli.main import main
from histobench.mint.outcomes import read_outcomes
from histobench.mint.results.episode_outcome import read_outcome_table
from histobench.mint.results.stored_episode import find_result_files, read_files

pytestmark = pytest.mark.usefixtures("one_sandbox")


@pytest.fixture
def finished(make_data: Callable[[int], Path], make_recording: Callable[[int], Path], tmp_path: Path) -> Path:
    """Ten episodes, each played twice."""
    output = tmp_path / "runs"
    data = ["--tasks", "gsm8k", "--data", str(make_data(10)), "--results", str(output), "--k", "3"]
    assert main(["mint", "run", "--agent", f"replay:{make_recording(10)}", "--repeat", "2", *data]) == 0
    return output


def export(finished: Path, kind: str, output: Path) -> None:
    assert main(["mint", "export", str(finished), "--to", kind, "--out", str(output)]) == 0


@pytest.mark.slow
def test_logs_of_inspect_come_back_as_the_same_outcomes(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    export(finished, "inspect", tmp_path / "logs")
    (log,) = (tmp_path / "logs").glob("*.eval")
    for place in (log, log.parent):
        assert sorted(read_outcomes(place), key=str) == sorted(read_outcomes(finished), key=str)


def test_turns_as_lines(finished: Path, tmp_path: Path) -> None:
    export(finished, "jsonl", tmp_path / "turns.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    ends = [line for line in lines if line["turn"] is None]
    episodes = read_files(find_result_files(finished))
    assert len(ends) == 20
    said = [(line["said"], line["answer"]) for line in lines if line["turn"]]
    assert said == [each for episode in episodes for each in episode.exchanges]


@pytest.mark.slow
def test_another_benchmarks_log_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelUsage
    from inspect_ai.scorer import Score

    samples = []
    for name, verdict, turns in (("a", "C", 3), ("b", 0, 1), ("c", "maybe", 5)):
        talk = [ChatMessageUser(content="?"), ChatMessageAssistant(content="!")] * turns
        usage = {model: ModelUsage(total_tokens=n * turns) for model, n in (("m", 1), ("grader", 10))}
        told: Any = {"target": "", "messages": talk, "model_usage": usage}
        samples.append(EvalSample(id=name, epoch=1, input="?", scores={"s": Score(value=verdict)}, **told))
    where: Any = {"created": "2026-01-01T00:00:00+00:00", "dataset": EvalDataset(), "config": EvalConfig()}
    log = EvalLog(eval=EvalSpec(task="elsewhere", model="some/m", **where), samples=samples)
    in_a_thread(write_eval_log)(log, str(tmp_path / "log.eval"))
    table = str(tmp_path / "table.csv")
    assert in_a_thread(main)(["mint", "import", str(tmp_path / "log.eval"), "-o", table]) == 0
    found = [
        (one.model, one.task, one.task_id, one.k, one.success, one.tokens)
        for one in read_outcome_table(table)
    ]
    assert found == [("m", "elsewhere", "a", 3, True, 33), ("m", "elsewhere", "b", 3, False, 11)]
    capsys.readouterr()
    assert main(["mint", "table", table]) == 0
    assert "50.00" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("inspect_ai")
    (tmp_path / "x.eval").write_bytes(b"no log")
    assert main(["mint", "import", str(tmp_path / "x.eval"), "-o", str(tmp_path / "t.csv")]) == 2
    assert "not a readable Inspect log" in capsys.readouterr().err
