"""The published benchmark's words, read from the user's download of its repository; none of it is run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import read_plain_text
from histobench.mint.prompts.literal_source import LiteralSource
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool

TEMPLATE = Path("mint/prompt/templates/template_with_tool.txt")
EXAMPLES = Path("mint/tasks/in_context_examples")
TOOL_FILES = (Path("mint/tools/wikipedia_search.py"), Path("mint/tools/alfworld.py"))
TOOL_LIST = (Path("mint/tools/__init__.py"), "get_toolset_description")
#: Task classes whose prompt starts with a sentence of the benchmark's.
PREFIXES = {
    "TheoremqaTask": Path("mint/tasks/reasoning.py"),
    "HumanEvalTask": Path("mint/tasks/codegen.py"),
    "AlfWorldTask": Path("mint/tasks/alfworld.py"),
}


class PublishedWording:
    """Prompts as in the published runs; `folder` is a clone of the benchmark's repository."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not (self._folder / TEMPLATE).is_file():
            raise HistobenchError(
                f"{folder} is not a download of the published benchmark: {TEMPLATE} is missing; "
                "clone github.com/xingyaoww/mint-bench and name its folder with `prompts_dir`"
            )

    def template(self) -> str:
        """The published instructions."""
        return self._read(TEMPLATE)

    def tools(self, tools: Sequence[Tool]) -> str:
        """The published list of tools; a tool that it does not know keeps its own words."""
        if not tools:
            return ""
        text = self._heading
        for number, tool in enumerate(tools, start=1):
            words = self._tool_texts.get(tool.name, {})
            signature = words.get("signature", tool.signature)
            text += f"[{number}] {signature}\n{words.get('description', tool.description)}\n"
        return text

    def example(self, task: Task, *, with_feedback: bool) -> str:
        """The published example of the task's kind."""
        name = "with_tool_and_feedback.txt" if with_feedback else "with_tool.txt"
        return self._read(EXAMPLES / task.task_name / name)

    def task(self, task: Task) -> str:
        """The task with the published sentence before it."""
        return self._prefix(type(task).__name__) + task.bare_prompt

    def _prefix(self, name: str) -> str:
        path = PREFIXES.get(name)
        return LiteralSource(self._folder / path).prefix_in_class(name) if path else ""

    @cached_property
    def _heading(self) -> str:
        path, function = TOOL_LIST
        return LiteralSource(self._folder / path).first_text_in_function(function, "\n")

    @cached_property
    def _tool_texts(self) -> dict[str, dict[str, str]]:
        texts: dict[str, dict[str, str]] = {}
        for path in TOOL_FILES:
            texts.update(LiteralSource(self._folder / path).class_texts())
        return texts

    def _read(self, path: Path) -> str:
        try:
            return read_plain_text(self._folder / path)
        except (OSError, UnicodeDecodeError) as error:
            raise HistobenchError(
                f"cannot read the published prompts {self._folder / path}: {error}"
            ) from error
