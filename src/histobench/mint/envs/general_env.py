"""The environment around the turn loop: runs code in the sandbox and asks the task's checker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from histobench.mint.envs.action import Action, CheckedCall
from histobench.mint.envs.native_calls import PROPOSAL, PROPOSE, PYTHON
from histobench.mint.envs.state import Budget
from histobench.mint.envs.turn_loop import WRONG, ActionOutcome
from histobench.mint.envs.words import BAD_CALL, CLOSED, NOT_MADE, SERVICE_FAILED, TOOL_FAILED, correction
from histobench.mint.messages.parts import Image, Message, ToolCall, ToolResult, ToolSpec
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Task, checked
from histobench.mint.tools import check_unique_names
from histobench.mint.tools.base import IllustratedText, Tool, ToolArgumentError, ToolServiceError
from histobench.mint.tools.python_tool import PythonREPL, as_observation
from histobench.mint.tools.schema import tool_spec

CELL_TIMEOUT_S = 30.0


class GeneralEnv:
    """One episode of a task: a fresh Python session with the tools in it.

    `outcome` is the only thing that touches the world; counting is the turn loop's. `wording` is how Python's
    error messages read: as they are, or as those of the version that the public recordings were made with.

    A subclass may ask for more than a solution (`proposal`), judge it in its own way (`check`), begin with
    its own words (`own_prompt`), and hold tools that open while the episode goes on (`Tool.is_open`).
    """

    #: The function that answers, where calls are native. Its name stays; a subclass may add parameters.
    proposal: ToolSpec = PROPOSAL

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
        self._shown: list[Image] = []
        self._repl = PythonREPL(
            {tool.name: self._guarded(tool) for tool in self.tools},
            cell_timeout,
            pool=pool,
            first_cell_number=first_cell_number,
            wording=wording,
        )

    def functions(self) -> tuple[ToolSpec, ...]:
        """What a model with native calls may call in this turn: the session, the open tools, the answer."""
        tools = [tool_spec(tool) for tool in (self._repl, *self.tools) if tool.is_open()]
        return (*tools, self.proposal)

    def own_prompt(self, budget: Budget, *, native: bool) -> str | Message | None:
        """The first message, where the common one will not do."""
        return None

    def outcome(self, action: Action) -> ActionOutcome:
        """What comes of an action."""
        if action.calls:
            return self._answer(action)
        if action.kind == "execute":
            return self._run(action.content)
        if action.kind == "proposal":
            return self.check(action.content)
        if action.kind == "error":
            return ActionOutcome()
        return ActionOutcome(correction(action, proposal=PROPOSE if action.native else None))

    def close(self) -> None:
        """End the session."""
        self._repl.close()

    def __enter__(self) -> GeneralEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def solved_by_acting(self) -> bool:
        """Whether the last turn ended the task without a proposal; only simulators can say so."""
        return False

    def check(self, solution: str) -> ActionOutcome:
        """What comes of a proposed solution; no observation is the protocol's "wrong"."""
        return ActionOutcome(success=checked(self.task, solution))

    def _run(self, code: str) -> ActionOutcome:
        text = self._repl(code).strip()
        return ActionOutcome(text, success=self.solved_by_acting(), images=self._take_images())

    def _answer(self, action: Action) -> ActionOutcome:
        """The results of native calls, in their order."""
        if action.is_proposal:
            verdict = self.check(action.content) if action.kind == "proposal" else ActionOutcome()
            said = WRONG if verdict.observation is None else verdict.observation
            results = tuple(_proposed(call, said) for call in action.calls)
            return ActionOutcome(verdict.observation, verdict.success, results=results)
        results = tuple(self._make(call) for call in action.calls)
        return ActionOutcome(
            "\n".join(result.text for result in results), success=self.solved_by_acting(), results=results
        )

    def _make(self, wanted: CheckedCall) -> ToolResult:
        call = wanted.call
        if wanted.problem is not None:
            return _failed(call, BAD_CALL.format(name=call.name, problem=wanted.problem))
        arguments = call.arguments or {}
        if call.name == PYTHON:
            text = self._repl(arguments["code"].strip()).strip()
            return ToolResult(call.id, call.name, text, images=self._take_images())
        tool = next(tool for tool in self.tools if tool.name == call.name)
        try:
            # As code would have printed it.
            text = as_observation(f"{self._guarded(tool)(**arguments)}\n").strip()
        except ToolArgumentError as error:
            return _failed(call, BAD_CALL.format(name=call.name, problem=error))
        except ToolServiceError as error:
            return _failed(call, SERVICE_FAILED.format(name=call.name, error=error))
        except (Exception, SystemExit) as error:
            return _failed(call, TOOL_FAILED.format(name=call.name, error=f"{type(error).__name__}: {error}"))
        return ToolResult(call.id, call.name, text, images=self._take_images())

    def _guarded(self, tool: Tool) -> Callable[..., Any]:
        """The tool as it is called: refused while it is closed, its pictures kept for the observation."""

        @functools.wraps(tool.__call__)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not tool.is_open():
                raise PermissionError(CLOSED.format(name=tool.name))
            value = tool(*args, **kwargs)
            if isinstance(value, IllustratedText):
                self._shown += value.images
            return value

        return call

    def _take_images(self) -> tuple[Image, ...]:
        images, self._shown = tuple(self._shown), []
        return images


def _proposed(wanted: CheckedCall, said: str) -> ToolResult:
    call = wanted.call
    if call.name != PROPOSE:
        return _failed(call, NOT_MADE.format(name=call.name))
    if wanted.problem is not None:
        return _failed(call, BAD_CALL.format(name=call.name, problem=wanted.problem))
    return ToolResult(call.id, call.name, said)


def _failed(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, text, failed=True)
