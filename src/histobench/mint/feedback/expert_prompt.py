"""What the expert is asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from histobench.mint.messages.parts import Message
from histobench.mint.prompts.first_message import TASK_HEADER, Wording
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool

TEMPLATE = Path(__file__).parent / "expert_prompt.txt"
NOT_GIVEN = "NOT GIVEN"


def expert_prompt(
    task: Task,
    tools: Sequence[Tool],
    wording: Wording,
    history: Sequence[Message],
    observation: str,
    *,
    knows_solution: bool,
) -> str:
    """The worked example, the tools, the conversation so far with the newest observation, the solution."""
    example = wording.example(task, with_feedback=True)
    trajectory = "\n".join(
        [TASK_HEADER + wording.task(task), *(message.content for message in history[1:]), observation]
    )
    values = {
        "example": example[max(example.find(TASK_HEADER.strip()), 0) :],
        "tools": wording.tools(tools),
        "trajectory": trajectory,
        "solution": solution_line(task.reference, published=task.rule != "strict")
        if knows_solution
        else NOT_GIVEN,
    }
    return _template().format(**values)


def solution_line(reference: Any, *, published: bool) -> str:
    """The solution as the expert reads it.

    The published benchmark takes a solution that is False, 0 or empty for one that is not given.

    >>> solution_line(False, published=True), solution_line(False, published=False)
    ('NOT GIVEN', 'False')
    """
    if reference is None or (published and not reference):
        return NOT_GIVEN
    return str(reference).strip()


@cache
def _template() -> str:
    return TEMPLATE.read_text(encoding="utf-8").removesuffix("\n")
