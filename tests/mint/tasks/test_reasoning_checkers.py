"""The checkers agree with the published ones on every recorded answer, and are strict where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.mint.tasks import reasoning, strict_answer, theorem_answer
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.reasoning import MultipleChoiceTask, ReasoningTask, TheoremqaTask
from reproduction.gates import score_reasoning

CLASSES: dict[str, type[Task]] = {
    "gsm8k": ReasoningTask,
    "math": ReasoningTask,
    "hotpotqa": ReasoningTask,
    "mmlu": MultipleChoiceTask,
    "theoremqa": TheoremqaTask,
}


@pytest.fixture(scope="module")
def tasks(reference_dir: Path) -> dict[tuple[str, Any], Task]:
    return {
        (name, task.task_id): task
        for name, kind in CLASSES.items()
        if (path := reference_dir / "mint" / "processed" / name / "test_prompts.json").exists()
        for task in kind.load_tasks(str(path))[0]
    }


@pytest.mark.slow
def test_every_recorded_answer_gets_the_published_verdict(
    reference_dir: Path, tasks: dict[tuple[str, Any], Task]
) -> None:
    scored = score_reasoning(reference_dir / "mint" / "replay", tasks)
    assert [case for case, agrees in scored if not agrees] == []
    assert len(scored) > 500


def test_an_option_with_brackets_is_read_whole_under_the_strict_rule() -> None:
    prompt = "Which? Options: [ 'A ) f(x) = 2' , 'B ) f(x) = 3' , 'C ) neither.' ]"
    task = MultipleChoiceTask(id=0, prompt=prompt, reference="b")
    assert task.metadata["options"] == {"a": "f(x", "b": "f(x", "c": "neither"}
    assert task.success("f(x) = 3")
    assert not task.success("f(x) = 2")


@given(st.text(max_size=60))
def test_no_answer_crashes_a_checker(text: str) -> None:
    for check in (reasoning.published_text, strict_answer.same_text):
        assert check("10.0", text) in (True, False)
        assert check("yes", text) in (True, False)
    options = {"a": "6", "b": "121"}
    assert reasoning.published_option("a", options, text) in (True, False)
    assert reasoning.strict_option("a", options, text) in (True, False)
    for reference, kind in (
        (1.5, "float"),
        (3, "integer"),
        ([1, 2], "list of integer"),
        (True, "bool"),
        ("a", "option"),
    ):
        assert theorem_answer.published(reference, kind, text) in (True, False)
        assert theorem_answer.strict(reference, kind, text) in (True, False)


def test_an_article_is_no_letter_but_an_a_is() -> None:
    options = {"a": "a cat", "b": "a dog"}
    for answer, letter in (("A bird", None), ("A because cats purr", "a"), ("A", "a"), ("A dog", "b")):
        given = [name for name in options if reasoning.strict_option(name, options, answer)]
        assert given == ([letter] if letter else [])


def test_the_published_rule_credits_a_wrong_letter_that_contains_the_right_one() -> None:
    assert reasoning.published_option("a", {"a": "x", "d": "y"}, "d ) earth was rotating")
    assert not reasoning.strict_option("a", {"a": "x", "d": "y"}, "d ) earth was rotating")


def test_an_answer_that_python_would_warn_of_prints_nothing(recwarn: pytest.WarningsRecorder) -> None:
    assert not strict_answer.same_text("3", "3and 4")
    assert not theorem_answer.published(3, "integer", "3and 4")
    assert not recwarn.list


def test_an_answer_is_never_run_as_code() -> None:
    hostile = "__import__('os').system('touch owned')"
    assert not theorem_answer.published(1, "integer", hostile)
    assert not theorem_answer.strict(1, "integer", "[].__class__.__mro__")
    assert not theorem_answer.published(1, "integer", "9**9**9**9")


def test_a_digit_that_is_no_number_does_not_break_the_published_rule() -> None:
    assert not reasoning.published_option("a", {"a": "²", "b": "3"}, "²")
    assert not reasoning.published_option("a", {"a": "x", "b": "²"}, "³")


def test_the_runs_of_2023_had_no_tolerance_for_negative_numbers() -> None:
    assert reasoning.published_text("-5", "-5.1")
    assert not reasoning.published_text("-5", "-5.1", recorded=True)
    assert not reasoning.published_text("-5", "-5", recorded=True)
    assert reasoning.published_text("5", "5.1", recorded=True)
