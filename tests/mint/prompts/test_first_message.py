"""The first message has its four parts, in this project's words or in the published ones."""

from __future__ import annotations

from pathlib import Path

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


def _download(folder: Path) -> Path:
    files = {
        "mint/prompt/templates/template_with_tool.txt": (
            "Do {max_total_steps}, {max_propose_solution}.\n{tool_desc}\n---\n{in_context_example}\n---\n"
            "{task_prompt}\n"
        ),
        "mint/tools/__init__.py": (
            'from x import y\ndef get_toolset_description(tools):\n    """Words."""\n    if not tools:\n'
            '        return ""\n    output = "Tools:\\n"\n    return output\n'
        ),
        "mint/tools/wikipedia_search.py": (
            'import nothing_here\nclass A:\n    name = "wikipedia_search"\n    signature = f"x"\n'
            '    signature = "wiki(q)"\n    description = (\n        "Looks "\n        "up."\n    )\n'
        ),
        "mint/tools/alfworld.py": (
            'SHAPE = "{name}({args})"\nTEXT = """{desc}\nE.g.: {example}\n""".lstrip()\n'
            'class Put(Tool):\n    name = "put"\n    signature = SHAPE.format(name=name, args="a, b")\n'
            '    description = TEXT.format(desc="Puts.", example="put(1)")\n'
        ),
        "mint/tasks/reasoning.py": (
            "class TheoremqaTask:\n    def __init__(self, prompt):\n        self._prompt = (\n"
            '            "Answer well. "\n            + prompt.strip()\n        )\n'
        ),
        "mint/tasks/codegen.py": (
            'class HumanEvalTask:\n    @property\n    def prompt(self):\n        """Text."""\n'
            '        return "Finish:\\n\\n" + self._prompt\n'
        ),
        "mint/tasks/in_context_examples/reasoning/with_tool.txt": "EXAMPLE\n",
        "mint/tasks/in_context_examples/humaneval/with_tool.txt": "CODE\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_published_words_come_from_the_users_download(tmp_path: Path) -> None:
    wording = PublishedWording(_download(tmp_path))
    task = TheoremqaTask(id=1, prompt=" How many? ", reference=3)
    assert first_message(task, [SEARCH], Budget(5, 2), wording=wording) == (
        "Do 5, 2.\nTools:\n[1] wiki(q)\nLooks up.\n\n---\nEXAMPLE\n\n---\nTask:\nAnswer well. How many?\n"
    )
    code = HumanEvalTask(id=0, prompt="def f():\n", reference="")
    assert first_message(code, [], Budget(), wording=wording).endswith("Task:\nFinish:\n\ndef f():\n\n")


def test_texts_that_are_put_together_are_read(tmp_path: Path) -> None:
    source = LiteralSource(_download(tmp_path) / "mint/tools/alfworld.py")
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
