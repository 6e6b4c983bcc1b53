"""The first message of an episode, and the choice of its wording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.prompts.published import PublishedWording
from histobench.mint.tasks.base import Task
from histobench.mint.tools import get_toolset_description
from histobench.mint.tools.base import Tool

TEMPLATES = Path(__file__).parent / "templates"
TASK_HEADER = "Task:\n"
_FEEDBACK = "After each turn an expert may comment on what you did.\n\n"


class OwnWording:
    def template(self) -> str:
        return (TEMPLATES / "with_tool.txt").read_text(encoding="utf-8").removesuffix("\n")

    def tools(self, tools: Sequence[Tool]) -> str:
        return get_toolset_description(tools)

    def example(self, task: Task, *, with_feedback: bool) -> str:
        return task.in_context_example(use_tool=True, with_feedback=with_feedback).removesuffix("\n")

    def task(self, task: Task) -> str:
        return task.prompt


#: Where the words of a prompt come from.
Wording = OwnWording | PublishedWording


def first_message(
    task: Task,
    tools: Sequence[Tool],
    budget: Budget,
    *,
    with_feedback: bool = False,
    wording: Wording | None = None,
) -> str:
    """Instructions with the budgets and the tools, one worked example, the task."""
    wording = wording or OwnWording()
    return wording.template().format(
        max_total_steps=budget.max_steps,
        max_propose_solution=budget.max_propose_solution,
        tool_desc=wording.tools(tools),
        in_context_example=wording.example(task, with_feedback=with_feedback),
        task_prompt=TASK_HEADER + wording.task(task),
    )


def calls_message(task: Task, budget: Budget, *, with_feedback: bool = False) -> str:
    """The first message where calls are native: the schema of each function replaces list and example."""
    template = (TEMPLATES / "native_calls.txt").read_text(encoding="utf-8").removesuffix("\n")
    return template.format(
        max_total_steps=budget.max_steps,
        max_propose_solution=budget.max_propose_solution,
        feedback=_FEEDBACK if with_feedback else "",
        task_prompt=TASK_HEADER + task.prompt,
    )


CHOICES = ("own", "official")


def choose_wording(name: str = "own", folder: str | Path | None = None) -> Wording:
    """The wording called `name`; the official one is read from `folder`, a clone of the benchmark."""
    if name not in CHOICES:
        raise HistobenchError(f"unknown prompts {name!r}; {did_you_mean(name, CHOICES)}")
    if name == "own":
        return OwnWording()
    if folder is None:
        raise HistobenchError(
            "`prompts` official needs `prompts_dir`: a clone of github.com/xingyaoww/mint-bench"
        )
    return PublishedWording(folder)
