"""The first message has its four parts, in this project's words or in the published ones."""

from __future__ import annotations

from pathlib import Path

from builders import published_prompts
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.prompts.first_message import OwnWording, first_message
from histobench.mint.prompts.published import LiteralSource, PublishedWording
from histobench.mint.tasks import HumanEvalTask, MBPPTask, ReasoningTask, TheoremqaTask
from histobench.mint.tools.wikipedia_search import WikipediaQueryRun

SEARCH = WikipediaQueryRun(encyclopedia=object())  # type: ignore[arg-type]


def test_the_parts_stand_in_order() -> None:
    task = ReasoningTask(id=0, prompt="What is {two} + 2?", reference="4")
    message = first_message(task, [SEARCH], Budget(3, 2))
    instructions, example, question = message.split("\n---\n")
    assert "You have 3 turns in all, and at most 2 of them" in instructions
    assert "[1] wikipedia_search(query: str) -> str" in instructions
    assert example.strip().startswith("Task:\n")
    assert question.strip() == "Task:\nWhat is {two} + 2?"
    assert "Expert feedback:" not in message


def test_feedback_changes_the_example() -> None:
    task = MBPPTask(id=0, prompt='"""Write it."""', reference="")
    message = first_message(task, [], Budget(), with_feedback=True)
    assert "Expert feedback:\nThis is GOOD." in message
    assert message.endswith("Task:\nWrite it.")


def test_published_words_come_from_the_users_download(tmp_path: Path) -> None:
    wording = PublishedWording(published_prompts(tmp_path))
    task = TheoremqaTask(id=1, prompt=" How many? ", reference=3)
    assert first_message(task, [SEARCH], Budget(5, 2), wording=wording) == (
        "Do 5, 2.\nTools:\n[1] wiki(q)\nLooks up.\n\n---\nEXAMPLE\n\n---\nTask:\nAnswer well. How many?\n"
    )
    assert wording.example(task, with_feedback=True) == "EXAMPLE WITH EXPERT\n"
    code = HumanEvalTask(id=0, prompt="def f():\n", reference="")
    assert first_message(code, [], Budget(), wording=wording).endswith("Task:\nFinish:\n\ndef f():\n\n")


def test_texts_that_are_put_together_are_read(tmp_path: Path) -> None:
    source = LiteralSource(published_prompts(tmp_path) / "mint/tools/alfworld.py")
    assert source.class_texts()["put"] == {
        "name": "put",
        "signature": "put(a, b)",
        "description": "Puts.\nE.g.: put(1)\n",
    }


def test_source_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        f"open({str(tmp_path / 'trace')!r}, 'w')\nclass A:\n    name = open('y')\n", encoding="utf-8"
    )
    assert LiteralSource(path).class_texts() == {}
    assert not (tmp_path / "trace").exists()


def test_every_dataset_has_its_example() -> None:
    for task in (
        ReasoningTask(id=0, prompt="", reference="1"),
        HumanEvalTask(id=0, prompt="", reference=""),
        MBPPTask(id=0, prompt="", reference=""),
    ):
        for with_feedback in (False, True):
            assert OwnWording().example(task, with_feedback=with_feedback).startswith("Task:\n")
