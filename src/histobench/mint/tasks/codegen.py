"""Code generation tasks: a program passes when its unit tests pass in a sandbox."""

from __future__ import annotations

import re
from typing import Any

from histobench.mint.sandbox import SandboxPool, Verdict, run_unit_tests, shared_pool
from histobench.mint.tasks.base import Task

# Code that comes wrapped in a Markdown fence.

_FENCE = "```"
_FIRST_LINE = re.compile(r"\s*+```[\w+-]*+[ \t]*+\n")


def without_fence(text: str) -> str:
    """The code inside a fence that encloses the whole text; any other text as it is.

    >>> without_fence("```python\\nx = 1\\n```")
    'x = 1'
    >>> without_fence("x = 1")
    'x = 1'
    """
    first = _FIRST_LINE.match(text)
    rest = text[first.end() :].rstrip() if first else ""
    if not rest.endswith(_FENCE):
        return text
    code = rest.removesuffix(_FENCE).rstrip(" \t").removesuffix("\n")
    return text if _FENCE in code else code


TIMEOUT_S = 10.0


class CodeGenTask(Task):
    """A program to write; the reference is the text of its tests."""

    #: Where tests run; the process-wide pool if nobody says otherwise.
    pool: SandboxPool | None = None
    #: The Python that published submissions were tested with; the strict rule knows newer ones.
    published_python = "python3.8"

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt
        self._reference = reference

    def extract_answer(self, solution: str) -> str:
        """The program: as given, or (strict rule) what is inside a Markdown fence."""
        return without_fence(solution) if self.rule == "strict" else solution

    def success(self, solution: str) -> bool:
        return self.verdict(solution).passed

    def verdict(self, solution: str) -> Verdict:
        """The same, with the reason."""
        program = self.extract_answer(solution)
        pool = self.pool or shared_pool()
        wording = "native" if self.rule == "strict" else self.published_python
        return run_unit_tests(pool, program, self._reference, timeout=TIMEOUT_S, wording=wording)


class HumanEvalTask(CodeGenTask):
    """A function to complete from its signature and docstring."""

    task_name = "humaneval"

    @property
    def prompt(self) -> str:
        """The code to complete."""
        return f"Complete this code:\n\n{self._prompt}"

    @property
    def bare_prompt(self) -> str:
        return self._prompt


class MBPPTask(CodeGenTask):
    """A function to write from a description and one test."""

    task_name = "mbpp"

    @property
    def prompt(self) -> str:
        """The description without the quotes around it."""
        return self._prompt.replace('"""', "").strip()
