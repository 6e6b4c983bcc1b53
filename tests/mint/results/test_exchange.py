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
    """Ten played episodes."""
    output = tmp_path / "runs"
    data = ["--tasks", "gsm8k", "--data", str(make_data(10)), "--results", str(output), "--k", "3"]
    assert main(["mint", "run", "--agent", f"replay:{make_recording(10)}", *data]) == 0
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
    assert len(ends) == 10
    said = [(line["said"], line["answer"]) for line in lines if line["turn"]]
    assert said == [each for episode in episodes for each in episode.exchanges]


@pytest.mark.slow
@pytest.mark.nightly
def test_another_benchmarks_log_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect_ai: Any = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match

    task = inspect_ai.Task(
        dataset=[
            Sample(input="What is 2 + 2?", target="4", id="a"),
            Sample(input="Name?", target="Bo", id="b"),
        ],
        scorer=match(),
        name="elsewhere",
    )
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    outputs = [ModelOutput.from_content("mockllm/model", text) for text in ("4", "Al")]
    for output in outputs:  # or Inspect wants to count them with a file from the network
        output.usage = ModelUsage(input_tokens=5, output_tokens=1, total_tokens=6)
    model = get_model("mockllm/model", custom_outputs=outputs)
    in_a_thread(inspect_ai.eval)(
        task, model=model, log_dir=str(tmp_path / "logs"), display="none", max_samples=1
    )
    (log,) = (tmp_path / "logs").glob("*.eval")
    assert in_a_thread(main)(["mint", "import", str(log), "-o", str(tmp_path / "table.csv")]) == 0
    outcomes = {outcome.task_id: outcome for outcome in read_outcome_table(tmp_path / "table.csv")}
    assert {name: outcome.success for name, outcome in outcomes.items()} == {"a": True, "b": False}
    assert {outcome.task for outcome in outcomes.values()} == {"elsewhere"}
    capsys.readouterr()
    assert main(["mint", "table", str(tmp_path / "table.csv")]) == 0
    assert "50.00" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("inspect_ai")
    (tmp_path / "x.eval").write_bytes(b"no log")
    assert main(["mint", "import", str(tmp_path / "x.eval"), "-o", str(tmp_path / "t.csv")]) == 2
    assert "not a readable Inspect log" in capsys.readouterr().err
