"""The environment of an episode: opening message, sandbox, tools, checker, ALFWorld."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from histobench.mint.envs.action import Action, CheckedCall
from histobench.mint.envs.native_calls import PROPOSAL, PROPOSE, PYTHON
from histobench.mint.envs.turn_loop import WRONG, ActionOutcome, Budget
from histobench.mint.messages.parts import Image, Message, ToolCall, ToolResult, ToolSpec
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.alfworld import AlfWorldTask
from histobench.mint.tasks.base import Task, checked
from histobench.mint.tasks.codegen import CodeGenTask
from histobench.mint.tools import check_unique_names
from histobench.mint.tools.alfworld import household_tools
from histobench.mint.tools.base import IllustratedText, Tool, ToolArgumentError, ToolServiceError
from histobench.mint.tools.python_tool import PythonREPL, as_observation
from histobench.mint.tools.tool_schema import tool_spec

#: The published protocol's answer to a message without a tag; recordings hold it, to the last space.
HELP = """I don't understand your input. 
To run Python code, put it between <execute> and </execute>: <execute>print(1 + 1)</execute>
To answer, put your solution between <solution> and </solution>: The answer is <solution>2</solution>
"""
REASONING_ONLY = f"Your message held reasoning and nothing else. Keep it short, and act.\n{HELP}"
NO_CALL = "You called no function. Call one of those you are given; to answer, call {proposal}."
REASONING_ONLY_NO_CALL = "Your message held reasoning and nothing else. Keep it short. " + NO_CALL
BAD_CALL = "Your call of {name} was not made: {problem}. Mend it and call again."
NOT_MADE = "Your call of {name} was not made: a turn that proposes a solution makes no other calls."
TOOL_FAILED = "The tool {name} failed: {error}. Your call was right; the fault lies in the tool."
SERVICE_FAILED = (
    "The service behind {name} did not answer: {error}. Your call was right; go on without it, or try again."
)


def correction(action: Action, *, proposal: str | None = None) -> str:
    only_reasoning = action.fault == "reasoning_only"
    if proposal is None:
        return REASONING_ONLY if only_reasoning else HELP
    return (REASONING_ONLY_NO_CALL if only_reasoning else NO_CALL).format(proposal=proposal)


CELL_TIMEOUT_S = 30.0


class GeneralEnv:
    """One episode of a task: a fresh Python session with the tools in it.

    `outcome` is the only thing that touches the world; counting is the turn loop's.

    A subclass may ask for more than a solution (`proposal`), judge it in its own way (`check`), begin with
    its own words (`own_prompt`), and hold tools that open while the episode goes on (`Tool.is_open`).
    """

    #: The function that answers, where calls are native. Its name stays; a subclass may add parameters.
    proposal: ToolSpec = PROPOSAL

    def __init__(self, task: Task, tools: Sequence[Tool] = (), *, pool: SandboxPool | None = None) -> None:
        check_unique_names(tools)
        self.task = task
        self.tools = tuple(tools)
        for tool in self.tools:
            tool.reset()
        self._shown: list[Image] = []
        self._repl = PythonREPL(
            {tool.name: self._guarded(tool) for tool in self.tools}, CELL_TIMEOUT_S, pool=pool
        )

    def functions(self) -> tuple[ToolSpec, ...]:
        """What a model with native calls may call in this turn: the session, the open tools, the answer."""
        tools = [tool_spec(tool) for tool in (self._repl, *self.tools) if tool.is_open()]
        return (*tools, self.proposal)

    def own_prompt(self, budget: Budget, *, native: bool) -> str | Message | None:
        return None

    def outcome(self, action: Action) -> ActionOutcome:
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
        self._repl.close()

    def __enter__(self) -> GeneralEnv:
        return self

    def __exit__(self, *_: object) -> None:
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
        if action.is_proposal:
            verdict = self.check(action.content) if action.kind == "proposal" else ActionOutcome()
            said = WRONG if verdict.observation is None else verdict.observation
            results = tuple(
                self._make(wanted, said)
                if wanted.call.name == PROPOSE
                else _failed(wanted.call, NOT_MADE.format(name=wanted.call.name))
                for wanted in action.calls
            )
            return ActionOutcome(verdict.observation, verdict.success, results=results)
        results = tuple(self._make(call) for call in action.calls)
        return ActionOutcome(
            "\n".join(result.text for result in results), success=self.solved_by_acting(), results=results
        )

    def _make(self, wanted: CheckedCall, said: str = "") -> ToolResult:
        """What comes of one call; `said` is the answer to a proposal."""
        call = wanted.call
        if wanted.problem is not None:
            return _failed(call, BAD_CALL.format(name=call.name, problem=wanted.problem))
        if call.name == PROPOSE:
            return ToolResult(call.id, call.name, said)
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
                raise PermissionError(f"{tool.name} is not open yet")
            value = tool(*args, **kwargs)
            if isinstance(value, IllustratedText):
                self._shown += value.images
            return value

        return call

    def _take_images(self) -> tuple[Image, ...]:
        images, self._shown = tuple(self._shown), []
        return images


def _failed(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, text, failed=True)


def open_environment(
    task: Task, tools: Sequence[Tool] = (), *, pool: SandboxPool | None = None
) -> GeneralEnv:
    """A fresh environment; household tasks bring their own actions along, others may bring all of it."""
    if isinstance(task, CodeGenTask) and pool is not None:
        task.pool = pool
    if isinstance(task, AlfWorldTask):
        return AlfWorldEnv(task, tools, pool=pool)
    own: GeneralEnv | None = task.open_environment(tools, pool=pool)
    return own if own is not None else GeneralEnv(task, tools, pool=pool)


class AlfWorldEnv(GeneralEnv):
    """One game with its eleven actions in the Python session."""

    def __init__(
        self, task: AlfWorldTask, tools: Sequence[Tool] = (), *, pool: SandboxPool | None = None
    ) -> None:
        self._household = task
        super().__init__(task, [*household_tools(task.game), *tools], pool=pool)

    def solved_by_acting(self) -> bool:
        return self._household.solved()

    def close(self) -> None:
        super().close()
        self._household.close()

    def outcome(self, action: Action) -> ActionOutcome:
        """What comes of an action; a broken game is not the agent's doing: the episode is played again."""
        outcome = super().outcome(action)
        if (failure := self._household.game.failure) is not None:
            raise failure
        return outcome
