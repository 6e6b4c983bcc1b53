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
def test_every_published_arm(lab: Any, play: Any, form: str, said: str, read: str, knows: bool) -> None:
    (lab.tmp_path / "prices.yaml").write_text("student: [0, 1000]\nteacher: [0, 2000]\n")
    options = ("--feedback-form", form, "--gt" if knows else "--no-gt")
    options += ("--prices", str(lab.tmp_path / "prices.yaml"))
    episodes = play("--feedback", "TEACHER", *options, said=said)
    assert given(episodes) == {read}
    kind = f"{'GT' if knows else 'no_GT'}-{form}"
    (file,) = lab.tmp_path.rglob("results.jsonl")
    assert f"student/F=teacher/PHF={kind}/max5_p2+tool+cd/reasoning/gsm8k" in file.as_posix()
    asked = [body["messages"][0]["content"] for body in lab.server.requests if body["model"] == "teacher"]
    assert all(len(body["messages"]) == 1 for body in lab.server.requests if body["model"] == "teacher")
    assert all(("NOT GIVEN" in prompt) is not knows for prompt in asked)
    turns = sum(len(line["state"]["history"]) // 2 - 1 for line in episodes)
    assert len(asked) >= turns > 5
    tokens = [line["state"]["token_counter"] for line in episodes]
    assert sum(counter["feedback_completion_tokens"] for counter in tokens) == 5 * len(asked)
    lines = file.with_name("details.jsonl").read_text().splitlines()
    kept = {record["task_id"]: record for record in map(json.loads, lines)}
    for line, counter in zip(episodes, tokens, strict=True):
        record, last = kept[line["task"]["task_id"]], line["state"]["latest_output"]
        assert record["tokens"] == counter["total_tokens"] + counter["feedback_total_tokens"]
        written = counter["completion_tokens"] + 2 * counter["feedback_completion_tokens"]
        assert record["cost"] == pytest.approx(written / 1000)
        assert last.get("feedback_type", "") in ("", "feedback_with_gt" if knows else "feedback_wo_gt")


def test_the_placebo_arm_asks_nobody_and_says_nothing_about_the_task(lab: Any, play: Any) -> None:
    episodes = play("--feedback", "placebo")
    assert given(episodes) <= set(SENTENCES)
    assert given(episodes)
    assert {body["model"] for body in lab.server.requests} == {"student"}
    (file,) = lab.tmp_path.rglob("results.jsonl")
    assert "F=placebo/PHF=no_GT-placebo" in file.as_posix()
    for line in play("--feedback", "placebo", "--calls", "native", output="native"):
        assert "an expert may comment" in line["state"]["history"][0]["content"]


def test_an_answer_given_away_is_marked_in_the_details_and_counted_in_the_table(lab: Any, play: Any) -> None:
    play("--feedback", "TEACHER", "--gt", said="This is BAD. The answer is 2.")
    (file,) = lab.tmp_path.rglob("details.jsonl")
    details = [json.loads(line) for line in file.read_text().splitlines()]
    leaks = {record["task_id"]: record["feedback"]["leaks"] for record in details}
    assert leaks[1] == [True]  # What is 1 + 1? A wrong first answer, then the expert tells.
    assert not any(any(found) for task, found in leaks.items() if task != 1)
    lab.capsys.readouterr()
    assert main(["mint", "table", str(lab.tmp_path / "out"), "--intervals"]) == 0
    (row,) = [
        line for line in lab.capsys.readouterr().out.splitlines() if "no_GT" not in line and "GT-" in line
    ]
    judged = sum(bool(found) for found in leaks.values())
    assert row.endswith(f"{100 / judged:.1f} %")


def test_recorded_feedback_can_be_given_again(lab: Any, play: Any) -> None:
    first = play("--feedback", "TEACHER", said="This is BAD. Think.", output="first")
    lab.server.requests.clear()
    again = play("--feedback", f"replay:{lab.tmp_path / 'first'}", said="unused", output="again")
    assert {body["model"] for body in lab.server.requests} == {"student"}
    histories = [
        {line["task"]["task_id"]: line["state"]["history"] for line in lines} for lines in (first, again)
    ]
    assert histories[0] == histories[1]
