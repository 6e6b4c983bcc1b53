"""The environment around the turn loop: runs code in the sandbox and asks the task's checker."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from histobench.mint.envs.action import Action
from histobench.mint.envs.turn_loop import HELP, Outcome
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Task, checked
from histobench.mint.tools import check_unique_names
from histobench.mint.tools.base import Tool
from histobench.mint.tools.python_tool import PythonREPL

CELL_TIMEOUT_S = 30.0


class GeneralEnv:
    """One episode of a task: a fresh Python session with the tools in it.

    `outcome` is the only thing that touches the world; counting is the turn loop's. `wording` is how Python's
    error messages read: as they are, or as those of the version that the public recordings were made with.
    """

    def __init__(
        self,
        task: Task,
        tools: Sequence[Tool] = (),
        *,
        pool: SandboxPool | None = None,
        first_cell_number: int = 1,
        cell_timeout: float = CELL_TIMEOUT_S,
        wording: str = "native",
    ) -> None:
        check_unique_names(tools)
        self.task = task
        self.tools = tuple(tools)
        for tool in self.tools:
            tool.reset()
        self._repl = PythonREPL(
            {tool.name: tool for tool in self.tools},
            cell_timeout,
            pool=pool,
            first_cell_number=first_cell_number,
            wording=wording,
        )

    def outcome(self, action: Action) -> Outcome:
        """What comes of an action."""
        if action.kind == "execute":
            return self._run(action.content)
        if action.kind == "proposal":
            return self._check(action.content)
        if action.kind == "error":
            return Outcome()
        return Outcome(HELP)

    def close(self) -> None:
        """End the session."""
        self._repl.close()

    def __enter__(self) -> GeneralEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, code: str) -> Outcome:
        return Outcome(self._repl(code).strip(), success=self.solved_by_acting())

    def solved_by_acting(self) -> bool:
        """Whether the last cell ended the task without a proposal; only simulators can say so."""
        return False

    def _check(self, solution: str) -> Outcome:
        success, problem = checked(self.task, solution)
        return Outcome(problem) if problem else Outcome(success=success)
