"""No answer, whatever it is made of, keeps a checker busy or makes it fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from histobench.mint.envs.action import classify
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.results.rescoring import rescore
from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.reasoning import MultipleChoiceTask, ReasoningTask, TheoremqaTask

MMLU = "Which? Options: [ 'A ) f(x) = 2' , 'B ) the red fox' , 'C ) none' ]"

#: Every checker on every answer, the rules in turn. The watchdog is a thread of the C library that waits for
#: no lock: an answer that takes a hundred times its 50 ms ends the process and shows where.
SCRIPT = """
import faulthandler, sys
sys.path.insert(0, sys.argv[1])
from degenerate_answers import degenerate_answers
from histobench.mint.envs.action import classify
from histobench.mint.tasks.codegen import without_fence
from histobench.mint.tasks.reasoning import MultipleChoiceTask, ReasoningTask, TheoremqaTask

tasks = [ReasoningTask(0, "q", text) for text in ("12", "-0.5", "yes", "the red fox")]
tasks.append(MultipleChoiceTask(0, sys.argv[2], "b"))
kinds = {"float": 1.5, "integer": 3, "bool": True, "option": "a", "list of integer": [1, 2]}
tasks += [TheoremqaTask(0, "q", reference, kind) for kind, reference in kinds.items()]
count = 0
for answer in degenerate_answers(int(sys.argv[3]), seed=20):
    faulthandler.dump_traceback_later(5, exit=True)
    classify(answer)
    classify(f"<solution>{answer}</solution>")
    without_fence(answer)
    for number, task in enumerate(tasks):
        task.rule = ("strict", "published", "recorded")[(number + count) % 3]
        assert task.success(answer) in (True, False)
    count += 1
print(count)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_thousands_of_degenerate_answers_are_checked_in_time(count: int) -> None:
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, MMLU, str(count)], capture_output=True, text=True, timeout=1000
    )
    assert done.stdout.strip() == str(count), done.stderr[-2000:]


@pytest.mark.parametrize("rule", ["strict", "published", "recorded"])
@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (MultipleChoiceTask(0, MMLU, "b"), "The answer is " * 40),
        (ReasoningTask(0, "q", "12"), "round(1,-10**9)"),
        (TheoremqaTask(0, "q", 1.5, "float"), "round(1,-10**9)"),
        (TheoremqaTask(0, "q", 1.5, "float"), "1" * 10_000),
        (TheoremqaTask(0, "q", 1.5, "float"), "1" * 100_000),
        (TheoremqaTask(0, "q", 1.5, "float"), "10**400"),
        (TheoremqaTask(0, "q", [1.0], "list of float"), "[10**400]"),
        (ReasoningTask(0, "q", "12"), "9" * 100_000 + " km"),
        (ReasoningTask(0, "q", "12"), "```\n" * 25_000),
    ],
)
def test_what_once_hung_or_crashed_is_a_wrong_answer(rule: str, task: Task, answer: str) -> None:
    task.rule = rule  # type: ignore[assignment]
    assert task.success(answer) is False


def test_forty_thousand_open_tags_are_one_invalid_action() -> None:
    assert classify("<execute>" * 40_000).kind == "invalid"
    assert classify("<solution>" * 40_000).kind == "proposal_unparsable"
    assert classify("<execute>" * 40_000 + "1</execute>").kind == "execute"


def test_a_checker_that_fails_is_no_success_and_does_not_end_a_rescoring() -> None:
    class Fragile(Task):
        def success(self, solution: str) -> bool:
            raise OverflowError("int too large to convert to float")

    messages = ["<solution>10**400</solution>"]
    assert not rescore(messages, Fragile(), "strict", stored_success=True, budget=Budget()).success


@pytest.mark.parametrize(
    ("text", "value"), [("round(2.675, 2)", 2.67), ("round(1234, -2)", 1200), ("round(7, -10**9)", 0)]
)
def test_rounding_is_that_of_python(text: str, value: float) -> None:
    assert evaluate(text, MATHEMATICS) == value


@pytest.mark.parametrize("text", ["*".join(["2**4000"] * 60), "10**400*10**9000", "factorial(200)**9"])
def test_whole_numbers_on_the_way_to_a_value_stay_small(text: str) -> None:
    with pytest.raises(NotArithmeticError, match="too large"):
        evaluate(text, MATHEMATICS)
