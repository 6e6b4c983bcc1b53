"""Code generation tasks: a program passes when its unit tests pass in a sandbox."""

from __future__ import annotations

import ast
import re

from histobench.mint.sandbox import SandboxPool, Verdict, run_unit_tests, shared_pool
from histobench.mint.tasks.base import LineTask

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


def helpers_in(prompt: str) -> str:
    """Return the code of a prompt without the functions to be written, if it defines others in full.

    >>> helpers_in("def one():\\n    return 1\\ndef two():\\n    'To be written.'")
    'def one():\\n    return 1'
    """
    try:
        tree = ast.parse(prompt)
    except (SyntaxError, ValueError):  # a description in words
        return ""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and _is_empty(node))]
    return ast.unparse(tree) if any(isinstance(node, ast.FunctionDef) for node in tree.body) else ""


def _is_empty(function: ast.FunctionDef) -> bool:
    return all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in function.body
    )


TIMEOUT_S = 10.0


class CodeGenTask(LineTask):
    """A program to write; the reference is the text of its tests."""

    #: Where tests run; the process-wide pool by default.
    pool: SandboxPool | None = None

    def extract_answer(self, solution: str) -> str:
        """The program: as given, or (strict rule) what is inside a Markdown fence."""
        return without_fence(solution) if self.rule == "strict" else solution

    def success(self, solution: str) -> bool:
        return self.verdict(solution).passed

    def verdict(self, solution: str) -> Verdict:
        """Return the verdict with its reason.

        Under the strict rule functions that the prompt defines are the prompt's when tests call them, and an
        answer need not repeat them. The published code took them from the answer.
        """
        return run_unit_tests(
            self.pool or shared_pool(),
            self.extract_answer(solution),
            self._reference,
            timeout=TIMEOUT_S,
            helpers=helpers_in(self._prompt) if self.rule == "strict" else "",
        )


class HumanEvalTask(CodeGenTask):
    """A function to complete from its signature and docstring."""

    task_name = "humaneval"

    @property
    def prompt(self) -> str:
        return f"Complete this code:\n\n{self._prompt}"

    @property
    def bare_prompt(self) -> str:
        return self._prompt


class MBPPTask(CodeGenTask):
    """A function to write from a description and one test."""

    task_name = "mbpp"

    @property
    def prompt(self) -> str:
        return self._prompt.replace('"""', "").strip()
