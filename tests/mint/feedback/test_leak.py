"""Answers given away, and mentions that give nothing away."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.mint.feedback.expert import leaks_answer
from histobench.mint.messages.parts import Message
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.codegen import MBPPTask
from histobench.mint.tasks.reasoning import MultipleChoiceTask, ReasoningTask, TheoremqaTask

NUMBER = ReasoningTask(id=1, prompt="How many legs have 7 cats?", reference="28.0")
PHRASE = ReasoningTask(id=2, prompt="Who wrote it?", reference="mary shelley")
CHOICE = MultipleChoiceTask(
    id=3, prompt="Which? Options: ['a ) red' , 'b ) green' , 'c ) blue']", reference="b"
)
YES_OR_NO = ReasoningTask(id=5, prompt="Is it a dog, yes or no?", reference="no")
TRUTH = TheoremqaTask(id=6, prompt="Is every group abelian?", reference=False, answer_type="bool")
PROGRAM = MBPPTask(
    id=4, prompt="Write a function to double.", reference="assert twice(2) == 4\nassert twice(5) == 10"
)


def judged(task: Task, feedback: str, said: str = "", observation: str = "") -> bool | None:
    history = (Message("user", "..."), Message("assistant", f"Assistant:\n{said}\n"))
    return leaks_answer(task, history, observation, feedback)


@pytest.mark.parametrize(
    ("task", "feedback"),
    [
        (NUMBER, "This is BAD. The answer is 28."),
        (NUMBER, "You should get 28 legs, since 4 * 7 = 28"),
        (PHRASE, "Think of Mary Shelley, who wrote it."),
        (CHOICE, "The correct option is B, not A."),
        (CHOICE, "It should be (b)."),
        (CHOICE, "Option B fits."),
        (CHOICE, "The right answer is green."),
        (YES_OR_NO, "This is BAD. The answer is no."),
        (TRUTH, 'This is BAD. The correct answer should be "False".'),
    ],
)
def test_a_stated_answer_is_a_leak(task: Task, feedback: str) -> None:
    assert judged(task, feedback) is True


@pytest.mark.parametrize(
    ("task", "feedback", "said", "observation"),
    [
        (NUMBER, "", "", ""),
        (NUMBER, "This is BAD. A cat has 4 legs, and there are 7 of them.", "", ""),
        (NUMBER, "This is GOOD. 28 is right, submit it.", "so it is 28", ""),
        (NUMBER, "This is GOOD. You computed 28.", "<execute>4*7</execute>", "Out[1]: 28"),
        (NUMBER, "Your code has 280 lines and 1.28 errors.", "", ""),
        (PHRASE, "This is BAD. Look for the author of the novel.", "", ""),
        (PHRASE, "This is GOOD. Mary Shelley it is.", "I think of Mary Shelley", ""),
        (CHOICE, "This is BAD. Option A is wrong.", "<solution>a</solution>", ""),
        (CHOICE, "This is GOOD. Submit option B.", "The answer is B", ""),
        (CHOICE, "This is BAD. A prism would help.", "", ""),
        (CHOICE, "This is BAD. The answer is not red.", "", ""),
        (YES_OR_NO, "This is BAD. There is no error in your code, but no search either.", "", ""),
        (YES_OR_NO, "This is GOOD. The answer is no.", "<solution>No</solution>", ""),
        (TRUTH, "This is BAD. Decide whether the statement is true or false.", "", ""),
    ],
)
def test_a_hint_or_a_verdict_on_the_agents_own_answer_is_none(
    task: Task, feedback: str, said: str, observation: str
) -> None:
    assert judged(task, feedback, said, observation) is False


def test_a_program_that_passes_the_tests_is_a_leak_and_a_fragment_is_not(needs_sandbox: None) -> None:
    whole = "This is BAD. Try this:\n```python\ndef twice(x):\n    return 2 * x\n```"
    wrong = "This is BAD. Try this:\n```python\ndef twice(x):\n    return x\n```"
    assert judged(PROGRAM, whole) is True
    assert judged(PROGRAM, wrong) is False
    assert judged(PROGRAM, "Use ```python\n2 * x\n``` in it.") is False
    assert judged(PROGRAM, whole, said="def twice(x):\n    return 2 * x") is False


@pytest.mark.slow
def test_feedback_of_the_recorded_expert_that_gives_the_answer_away_is_found(shared_dir: Path) -> None:
    from histobench.mint.configs.datasets import get_dataset
    from histobench.mint.results.recording import read_recordings

    datasets = ("gsm8k", "math", "mmlu", "theoremqa", "hotpotqa")
    data = shared_dir / "mint" / "processed"
    tasks = {(name, task.task_id): task for name in datasets for task in get_dataset(name).load(data)}
    found = set()
    messages = 0
    for recording in read_recordings(
        shared_dir / "mint" / "replay" / "gpt-3.5-turbo-0613+F-gpt-4-0613.k5.jsonl.gz"
    ):
        task = tasks.get((recording.task, recording.task_id))
        history = [Message("user", "")]
        for turn in recording.turns if task is not None else ():
            history.append(Message("assistant", turn.assistant))
            messages += bool(turn.feedback)
            if leaks_answer(task, history, turn.observation or "", turn.feedback):  # type: ignore[arg-type]
                found.add((recording.task, recording.task_id))
            history.append(Message("user", turn.observation or ""))
    # "... is known and it is 25." and "the correct option should be A)" are plain; "each representing 30
    # degrees" names the number of the answer for another angle.
    assert found == {("theoremqa", 8), ("mmlu", 38), ("math", 59)}
    assert messages == 920
