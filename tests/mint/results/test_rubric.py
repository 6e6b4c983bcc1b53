"""Answers graded against a rubric by scripted models, and their agreement with a person."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import cohen_kappa_score

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.results.uncertainty import tasks_interval
from histobench.mint.rubric import (
    Graded,
    GradedAnswer,
    Rubric,
    agreements,
    pass_rates,
    read_answers,
    read_rubric,
)

pytestmark = pytest.mark.usefixtures("one_sandbox")
RUBRIC = """
rubric: |
  right: the answer is the reference. wrong: it is another number.
grades: [right, partly, wrong]
passes: [right, partly]
"""


@pytest.fixture
def results(tmp_path: Path, make_data: Callable[[int], Path], make_recording: Callable[[int], Path]) -> Path:
    arguments = ["--agent", f"replay:{make_recording(30)}", "--tasks", "gsm8k", "--data", str(make_data(30))]
    assert main(["mint", "run", *arguments, "-o", str(tmp_path / "runs")]) == 0
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    return tmp_path / "runs"


def scripted(replies: Any, asked: list[str]) -> Callable[[dict[str, Any], int], Any]:
    """One grader is always right; one calls every third answer partly right; one gives no grade."""

    def answer(body: dict[str, Any], number: int) -> Any:
        prompt = body["messages"][0]["content"]
        asked.append(prompt)
        said = prompt.split("<<<ANSWER\n")[1].split("\nANSWER>>>")[0]
        reference = prompt.split("does not see it):\n")[1].split("\n")[0]
        grade = "right" if said == reference else "wrong"
        if body["model"] == "moody" and int(reference) % 3 == 0:
            grade = "partly"
        return replies.chat(
            "No idea." if body["model"] == "mute" else f"Because.\n**GRADE:** {grade.title()}"
        )

    return answer


@pytest.mark.slow
def test_graders_are_held_against_a_person(lab: Any, results: Path) -> None:
    asked: list[str] = []
    lab.server.answer = scripted(lab.replies, asked)
    before = {path: path.read_bytes() for path in results.rglob("*.jsonl")}
    out = lab.tmp_path / "grades"
    graders = [f"--grader=openai:{name}@{lab.server.url}" for name in ("exact", "moody", "mute")]
    command = ["mint", "grade", str(results), "--rubric", str(lab.tmp_path / "rubric.yaml"), *graders]
    command += ["-o", str(out)]
    lab.capsys.readouterr()
    assert main([*command, "--sample", "20"]) == 0
    said = lab.capsys.readouterr().out
    assert "fill the column `label`" in said
    assert "30 replies gave no grade" in said
    assert len(asked) == 90
    assert "When" not in asked[0]
    assert all("What is" in prompt and "right, partly, wrong" in prompt for prompt in asked)
    with (out / "sample.csv").open() as file:
        sample = list(csv.DictReader(file))
    assert len(sample) == 20
    assert ",".join(sample[0]) == "id,run,dataset,task_id,repeat,prompt,reference,answer,label"
    for row in sample:  # the person agrees with the exact grader
        row["label"] = "right" if row["answer"] == row["reference"] else "WRONG"
    with (out / "sample.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(sample[0]))
        writer.writeheader()
        writer.writerows(sample)
    assert main([*command, "--labels", str(out / "sample.csv")]) == 0
    said = lab.capsys.readouterr().out
    assert len(asked) == 90  # nothing was asked again
    assert "WRONG" in (out / "sample.csv").read_text()  # what the person wrote
    exact, moody = (
        next(line.split() for line in said.splitlines() if f"openai:{name}" in line and "person" in line)
        for name in ("exact", "moody")
    )
    assert exact[2:6] == ["20", "100.0", "%", "1.00"]
    with (out / "grades.csv").open() as file:
        graded = {row["id"]: row for row in csv.DictReader(file)}
    pairs = [(row["label"].lower(), graded[row["id"]][f"openai:moody@{lab.server.url}"]) for row in sample]
    assert float(moody[5]) == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)), abs=0.006)
    calls = [json.loads(line) for line in (out / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 90
    assert calls[0]["turns"][0]["sha256"]
    # Exact scoring is as it was.
    assert {path: path.read_bytes() for path in results.rglob("*.jsonl")} == before
    samples = []
    for seed in "01":
        few = ["--limit", "12", "--sample", "6", "--seed", seed, "-o", str(lab.tmp_path / seed)]
        assert main([*command, *few]) == 0
        samples.append((lab.tmp_path / seed / "sample.csv").read_text())
        assert len((lab.tmp_path / seed / "calls.jsonl").read_text().splitlines()) == 3 * 12
    assert samples[0] != samples[1]


@pytest.mark.slow
def test_a_limit_of_cost_keeps_what_was_graded(lab: Any, results: Path) -> None:
    asked: list[str] = []
    lab.server.answer = scripted(lab.replies, asked)
    lab.monkeypatch.chdir(lab.tmp_path)  # where the folder `grades` is made
    (lab.tmp_path / "prices.yaml").write_text("exact: [100, 100]\nmoody: [100, 100]\n")
    command = ["mint", "grade", str(results), "--rubric", str(lab.tmp_path / "rubric.yaml")]
    command += [f"--grader=openai:exact@{lab.server.url}", "--max-tokens", "64"]
    command += ["--prices", str(lab.tmp_path / "prices.yaml"), "--concurrency", "1", "--max-cost"]

    def rows(name: str) -> list[dict[str, str]]:
        with (lab.tmp_path / "grades" / name).open() as file:
            return list(csv.DictReader(file))

    lab.capsys.readouterr()
    assert main([*command, "0"]) == 2
    assert "a number above 0" in lab.capsys.readouterr().err
    assert main([*command, "0.1"]) == 1
    said = " ".join(lab.capsys.readouterr().out.split())
    some = len(asked)
    assert 0 < some < 30
    assert {body["max_tokens"] for body in lab.server.requests} == {64}
    assert "stopped: $" in said
    assert "higher `max_cost`" in said
    assert len(rows("grades.csv")) == some
    assert not (lab.tmp_path / "grades" / "sample.csv").exists()
    assert main([*command, "100"]) == 0
    assert len(asked) == 30  # nothing was asked twice
    assert len(rows("grades.csv")) == len(rows("sample.csv")) == 30
    # Another grader that cannot be paid takes nothing away from the first.
    lab.capsys.readouterr()
    assert main([*command, "0.01", f"--grader=openai:moody@{lab.server.url}"]) == 1
    assert "gave no grade" not in lab.capsys.readouterr().out
    assert [row[f"openai:exact@{lab.server.url}"] for row in rows("grades.csv")].count("") == 0
    assert len(asked) == 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rubric: x", "at least two different `grades`"),
        ("rubric: x\ngrades: [a, b]\npasses: [c]", "none of the grades"),
        ("rubric: x\ngrade: [a, b]", "unknown key 'grade'"),
        ("- a", "a rubric has the keys"),
    ],
)
def test_a_rubric_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rubric.yaml").write_text(text)
    with pytest.raises(HistobenchError, match=said):
        read_rubric(tmp_path / "rubric.yaml")


def test_a_label_that_is_no_grade_is_named(lab: Any, results: Path) -> None:
    (lab.tmp_path / "labels.csv").write_text("id,label\nabc,good\n")
    command = ["mint", "grade", str(results), "--rubric", str(lab.tmp_path / "rubric.yaml")]
    assert (
        main([*command, "--grader=openai:x@http://h/v1", "--labels", str(lab.tmp_path / "labels.csv")]) == 2
    )
    assert "labels.csv:2: unknown grade 'good'" in lab.capsys.readouterr().err


def test_the_majority_of_three_is_compared_with_the_person() -> None:
    answers = [GradedAnswer("m", "d", str(number), 1, "?", "1", "1") for number in range(4)]
    given = [("a", "a", "b"), ("b", "b", "a"), ("a", "b", "c"), ("a", "a", "a")]
    graded = [
        Graded(answer, dict(zip("xyz", grades, strict=True)))
        for answer, grades in zip(answers, given, strict=True)
    ]
    assert [row.majority for row in graded] == ["a", "b", None, "a"]
    found = agreements(graded, {answer.id: label for answer, label in zip(answers, "abca", strict=True)})
    assert found["person", "majority"].n == 3
    assert found["person", "majority"].kappa == 1
    assert ("x", "majority") not in found


def test_the_last_answer_of_an_episode_is_graded(results: Path) -> None:
    answers = {int(answer.task_id): answer.text for answer in read_answers(results)}
    assert (answers[0], answers[1]) == ("1", "-7")
    assert len(answers) == 30


def test_pass_rates_are_over_tasks_that_were_tried_unequally_often() -> None:
    passed = {
        ("gsm8k", "1"): (True, False),
        ("gsm8k", "2"): (True,),
        ("mbpp", "1"): (False, False, True),
        ("mbpp", "4"): (False,),
        ("mbpp", "5"): (False, False),
    }
    graded = [
        Graded(GradedAnswer("r", *task, repeat, "", "", ""), {"g": "right" if good else "wrong"})
        for task, tries in passed.items()
        for repeat, good in enumerate(tries)
    ]
    found = pass_rates(graded, Rubric("", ("right", "wrong"), ("right",)))
    solved, tries, datasets = [1, 1, 1, 0, 0], [2, 1, 3, 1, 2], ["gsm8k"] * 2 + ["mbpp"] * 3
    expected = tasks_interval(solved, tries, datasets=datasets)
    assert found == {("r", "g"): (9, 3 / 9, expected.low, expected.high)}
    assert tasks_interval(solved, tries) != expected
