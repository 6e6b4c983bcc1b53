"""Runs with an expert: what each arm of the experiment shows to whom, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.mint.feedback.kind import SENTENCES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_sandbox")]
EPISODES = 10
EXPERT_MARK = "Expert feedback:\n"


@pytest.fixture
def play(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any, script: Any
) -> Callable[..., list[dict[str, Any]]]:
    """Runs the scripted model with an expert called teacher, who says `said`; returns the episodes."""
    data = make_data(EPISODES)

    def run(
        *arguments: str, said: str = "This is BAD. Add one.", output: str = "out"
    ) -> list[dict[str, Any]]:
        def answer(body: dict[str, Any], number: int) -> Any:
            return replies.chat(said if body["model"] == "teacher" else script.answer(body))

        server.answer = answer
        where = ["--tasks", "gsm8k", "--data", str(data), "-o", str(tmp_path / output)]
        agent = ["--agent", f"openai:student@{server.url}"]
        feedback = [text.replace("TEACHER", f"openai:teacher@{server.url}") for text in arguments]
        assert main(["mint", "run", *agent, *where, *feedback]) == 0
        return list(script.lines(tmp_path / output))

    return run


def given(episodes: list[dict[str, Any]]) -> set[str]:
    """Every feedback that the model under test has read."""
    texts = [m["content"] for line in episodes for m in line["state"]["history"][1:] if m["role"] == "user"]
    return {text.partition(f"\n{EXPERT_MARK}")[2].removesuffix("\n") for text in texts}


@pytest.mark.sample(2)
@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize(
    ("form", "said", "read"),
    [
        ("textual", "This is BAD. Add one.", "This is BAD. Add one."),
        ("binary", "This is GOOD! Add one.", "This is GOOD."),
        ("binary", "Well. This is BAD.", ""),  # only the first sentence counts
    ],
)
def test_every_published_arm(
    tmp_path: Path, play: Any, server: Any, form: str, said: str, read: str, knows: bool
) -> None:
    episodes = play(
        "--feedback", "TEACHER", "--feedback-form", form, "--gt" if knows else "--no-gt", said=said
    )
    assert given(episodes) == {read}
    kind = f"{'GT' if knows else 'no_GT'}-{form}"
    (file,) = tmp_path.rglob("results.jsonl")
    assert f"student/F=teacher/PHF={kind}/max5_p2+tool+cd/reasoning/gsm8k" in file.as_posix()
    asked = [body["messages"][0]["content"] for body in server.requests if body["model"] == "teacher"]
    assert all(len(body["messages"]) == 1 for body in server.requests if body["model"] == "teacher")
    assert all(("NOT GIVEN" in prompt) is not knows for prompt in asked)
    turns = sum(len(line["state"]["history"]) // 2 - 1 for line in episodes)
    assert len(asked) >= turns > 5
    tokens = [line["state"]["token_counter"] for line in episodes]
    assert sum(counter["feedback_completion_tokens"] for counter in tokens) == 5 * len(asked)


def test_the_placebo_arm_asks_nobody_and_says_nothing_about_the_task(
    tmp_path: Path, play: Any, server: Any
) -> None:
    episodes = play("--feedback", "placebo")
    assert given(episodes) <= set(SENTENCES)
    assert given(episodes)
    assert {body["model"] for body in server.requests} == {"student"}
    (file,) = tmp_path.rglob("results.jsonl")
    assert "F=placebo/PHF=no_GT-placebo" in file.as_posix()


def test_an_answer_given_away_is_marked_in_the_details_and_counted_in_the_table(
    tmp_path: Path, play: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    play("--feedback", "TEACHER", "--gt", said="This is BAD. The answer is 2.")
    (file,) = tmp_path.rglob("details.jsonl")
    details = [json.loads(line) for line in file.read_text().splitlines()]
    leaks = {record["task_id"]: record["feedback"]["leaks"] for record in details}
    assert leaks[1] == [True]  # What is 1 + 1? A wrong first answer, then the expert tells.
    assert not any(any(found) for task, found in leaks.items() if task != 1)
    capsys.readouterr()
    assert main(["mint", "table", str(tmp_path / "out"), "--intervals"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "no_GT" not in line and "GT-" in line]
    judged = sum(bool(found) for found in leaks.values())
    assert row.endswith(f"{100 / judged:.1f} %")


def test_recorded_feedback_can_be_given_again(
    tmp_path: Path, play: Any, server: Any, make_recording: Callable[[int], Path]
) -> None:
    first = play("--feedback", "TEACHER", said="This is BAD. Think.", output="first")
    server.requests.clear()
    again = play("--feedback", f"replay:{tmp_path / 'first'}", said="unused", output="again")
    assert {body["model"] for body in server.requests} == {"student"}
    histories = [
        {line["task"]["task_id"]: line["state"]["history"] for line in lines} for lines in (first, again)
    ]
    assert histories[0] == histories[1]


def test_the_gain_of_each_arm_stands_in_the_table(
    tmp_path: Path, play: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    play(output="all")
    play("--feedback", "placebo", output="all")
    play("--feedback", "TEACHER", output="all")
    capsys.readouterr()
    assert main(["mint", "table", str(tmp_path / "all"), "--intervals", "--feedback-model", "teacher"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split()[:3] for line in shown.splitlines() if line.startswith("student")]
    assert ["student", "placebo", "no_GT-placebo"] in rows
    assert ["student", "teacher", "no_GT-textual"] in rows
