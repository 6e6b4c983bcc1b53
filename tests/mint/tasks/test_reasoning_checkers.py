"""The checkers agree with the published ones on every recorded answer, and are strict where asked."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.mint.tasks import free_form, multiple_choice, theorem_answer
from histobench.mint.tasks.base import Rule, Task
from histobench.mint.tasks.reasoning import MultipleChoiceTask, ReasoningTask, TheoremqaTask

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


@pytest.fixture(scope="module")
def answers(reference_dir: Path) -> list[dict[str, Any]]:
    with gzip.open(
        reference_dir / "mint" / "replay" / "reasoning_answers.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "key"), [("published", "verdict"), ("recorded", "verdict_legacy")])
def test_every_recorded_answer_gets_the_published_verdict(
    tasks: dict[tuple[str, Any], Task], answers: list[dict[str, Any]], rule: Rule, key: str
) -> None:
    wrong: Counter[str] = Counter()
    for case in answers:
        task = tasks[case["task"], case["task_id"]]
        task.rule = rule
        expected = case.get(key, case["verdict"])
        if rule == "recorded" and getattr(task, "_answer_type", "") == "option":
            expected = False  # no recording of that time was credited for one
        wrong[case["task"]] += task.success(case["answer"]) != expected
    assert wrong.total() == 0, wrong


def test_an_option_with_brackets_is_read_whole_under_the_strict_rule() -> None:
    prompt = "Which? Options: [ 'A ) f(x) = 2' , 'B ) f(x) = 3' , 'C ) neither.' ]"
    task = MultipleChoiceTask(id=0, prompt=prompt, reference="b")
    assert task.metadata["options"] == {"a": "f(x", "b": "f(x", "c": "neither"}
    assert task.success("f(x) = 3")
    assert not task.success("f(x) = 2")


@given(st.text(max_size=60))
def test_no_answer_crashes_a_checker(text: str) -> None:
    for check in (free_form.published, free_form.strict):
        assert check("10.0", text) in (True, False)
        assert check("yes", text) in (True, False)
    options = {"a": "6", "b": "121"}
    assert multiple_choice.published("a", options, text) in (True, False)
    assert multiple_choice.strict("a", options, text) in (True, False)
    for reference, kind in (
        (1.5, "float"),
        (3, "integer"),
        ([1, 2], "list of integer"),
        (True, "bool"),
        ("a", "option"),
    ):
        assert theorem_answer.published(reference, kind, text) in (True, False)
        assert theorem_answer.strict(reference, kind, text) in (True, False)


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("10.0", "10 units", True),
        ("10.0", "$10", True),
        ("1200", "1,200 dollars", True),
        ("6", "16 miles", False),
        ("0.5", "\\frac{1}{2}", True),
        ("0.5", "\\boxed{\\frac{1}{2}}", True),
        ("-108.0", "-108", True),
        ("-108.0", "108", False),
        ("50", "50%", True),
        ("50", "~50", True),
        ("-51", "~50", False),
        ("-5", "–5", True),
        ("5", "minus 5", False),
        ("1000", "1000 \\text{ m}^2", True),
        ("1000", "1{,}000 m^2", True),
        ("18", '"18"', True),
        ("18", "**18**", True),
        ("3", "[3]", True),
        ("1", "(1, 1, 1)", False),
        ("2", "2\\pi", False),
        ("6.283", "$2\\pi$ radians", True),
        ("2", "\\frac{\\pi}{2}", False),
        ("2", "\\sqrt{2}", False),
        ("2", "2^{2}", False),
        ("3", "\\sqrt{9}", True),
        ("0.866", "\\frac{\\sqrt{3}}{2}", True),
        ("3", "3i", False),
        ("90", "90^\\circ", True),
        ("9", "9**9**9**9", False),
        ("7", "x = 7", True),
        ("7", "either 7 or 8", False),
        ("yes", "Yes, they are", True),
        ("no", "They know nothing", False),
        ("Pedro Rodríguez", "It was Pedro Rodríguez.", True),
        ("the Beatles", "Beatles", True),
        ("ohio", "I was in Ohiopyle", False),
    ],
)
def test_the_strict_rule_reads_an_answer_as_a_person_would(reference: str, answer: str, right: bool) -> None:
    assert free_form.strict(reference, answer) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("c", True),
        ("C", True),
        ("(C)", True),
        ("C ) 18107", True),
        ("Option C", True),
        ("The correct answer is c.", True),
        ("The answer is $\\boxed{\\text{C)}}$.", True),
        ("`C`", True),
        ("My answer is C", True),
        ("C because it is the largest", True),
        ("C or D", False),
        ("18107", True),
        ("D ) because", False),
        ("a) 6", False),
        ("6", False),
        ("B", False),
        ("", False),
    ],
)
def test_strict_multiple_choice_wants_the_right_letter(answer: str, right: bool) -> None:
    options = {"a": "6", "b": "121", "c": "18107", "d": "54,320"}
    assert multiple_choice.strict("c", options, answer) is right


def test_an_article_is_no_letter_but_an_a_is() -> None:
    options = {"a": "a cat", "b": "a dog"}
    for answer, letter in (("A bird", None), ("A because cats purr", "a"), ("A", "a"), ("A dog", "b")):
        given = [name for name in options if multiple_choice.strict(name, options, answer)]
        assert given == ([letter] if letter else [])


@pytest.mark.parametrize(
    ("reference", "kind", "answer", "right"),
    [
        (-2.5, "float", "−2.5", True),
        (2.5, "float", "−2.5", False),
        (3, "integer", "minus 3", False),
        (0.5, "float", ".5", True),
        (5.0, "float", ".5", False),
        (2.0, "float", "2π", False),
        (1.28e-6, "float", "1.28 × 10^{-6} V/K", True),
        (True, "bool", "Not true", False),
        (False, "bool", "The answer is False. x - 1 is not a factor.", True),
        ("b", "option", "(B)", True),
        ("b", "option", "\\boxed{\\text{(b)}}", True),
    ],
)
def test_the_strict_rule_of_theoremqa_reads_signs_points_and_letters(
    reference: object, kind: str, answer: str, right: bool
) -> None:
    assert theorem_answer.strict(reference, kind, answer) is right


def test_the_published_rule_credits_a_wrong_letter_that_contains_the_right_one() -> None:
    assert multiple_choice.published("a", {"a": "x", "d": "y"}, "d ) earth was rotating")
    assert not multiple_choice.strict("a", {"a": "x", "d": "y"}, "d ) earth was rotating")


def test_an_answer_that_python_would_warn_of_prints_nothing(recwarn: pytest.WarningsRecorder) -> None:
    assert not free_form.strict("3", "3and 4")
    assert not theorem_answer.published(3, "integer", "3and 4")
    assert not recwarn.list


def test_an_answer_is_never_run_as_code() -> None:
    hostile = "__import__('os').system('touch owned')"
    assert not theorem_answer.published(1, "integer", hostile)
    assert not theorem_answer.strict(1, "integer", "[].__class__.__mro__")
    assert not theorem_answer.published(1, "integer", "9**9**9**9")


def test_a_digit_that_is_no_number_does_not_break_the_published_rule() -> None:
    assert not multiple_choice.published("a", {"a": "²", "b": "3"}, "²")
    assert not multiple_choice.published("a", {"a": "x", "b": "²"}, "³")


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("1110", "1080", False),
        ("100", "105", False),
        ("1962", "1999", False),
        ("1962", "The answer is 1962.", True),
        ("12", "12 apples", True),
        ("the late 12th century", "12 apples", False),
        ("the late 12th century", "12", False),
        ("the late 12th century", "Late 12th century.", True),
        ("0.63", "0.63", True),
        ("0.63", "0.6", False),
        ("10.0", "10.4", False),
        ("7", "Since 3 + 4 is needed, $\\boxed{7}$. It took 2 steps.", True),
        ("President of the United States", "Vice President of the United States", False),
        ("Venice", "The answer is <solution> Venice", True),
        ("French Canadians", "Irish immigrants and French Canadians", False),
        ("Tea Moderna", "It is not Tea Moderna", False),
        ("yes", "Yes or no", False),
    ],
)
def test_the_strict_rule_has_no_tolerance_of_its_own(reference: str, answer: str, right: bool) -> None:
    assert ReasoningTask(0, "?", reference).success(answer) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("\\boxed{39}", True),
        ("The answer is $\\boxed{39}$.\n\nSince $(3,6)$ is on the graph, $g(3)=6$.", True),
        ("the answer is C )", True),
        ("It is not 12, so the answer is <solution> C ) 39", True),
        ("The correct answer is $\\boxed{\\text{(A) }39}$", False),
        ("A ) 12 , B ) 36 , C ) 39 , D ) 13", False),
        ("The answer is A) 39", False),
        ("40", False),
    ],
)
def test_what_is_boxed_or_called_the_answer_decides_the_option(answer: str, right: bool) -> None:
    assert multiple_choice.strict("c", {"a": "12", "b": "36", "c": "39", "d": "13"}, answer) is right


def test_a_list_of_all_options_is_no_answer() -> None:
    assert not multiple_choice.strict("a", {"a": "12", "b": "36"}, "A ) 12 , B ) 36")


@pytest.mark.parametrize(("answer", "right"), [("3", True), ("3.4", False), ("\\boxed{3}", True)])
def test_a_whole_number_of_theoremqa_is_met_exactly(answer: str, right: bool) -> None:
    assert theorem_answer.strict(3, "integer", answer) is right
    assert theorem_answer.published(3, "integer", "3.4")  # the published rule rounds


def test_the_runs_of_2023_had_no_tolerance_for_negative_numbers() -> None:
    assert free_form.published("-5", "-5.1")
    assert not free_form.published("-5", "-5.1", recorded=True)
    assert not free_form.published("-5", "-5", recorded=True)
    assert free_form.published("5", "5.1", recorded=True)
