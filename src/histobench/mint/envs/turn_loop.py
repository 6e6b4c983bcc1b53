"""The turn loop of the published benchmark as pure functions.

A turn is `act` (log and count), `settle` (apply what came of it) and `observe` (the next message).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from histobench.mint.envs.action import Action, Outcome, refuses_in_words
from histobench.mint.messages.parts import (
    FEEDBACK_HEADING,
    Ending,
    Image,
    Message,
    Part,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from histobench.mint.messages.record import message_record

FeedbackType = Literal["no_feedback", "feedback_wo_gt", "feedback_with_gt"]
TerminateReason = Literal["task_success", "max_propose_steps", "max_steps", "error"]


@dataclass(frozen=True)
class Budget:
    max_steps: int = 5
    max_propose_solution: int = 2
    count_down: bool = True


@dataclass(frozen=True)
class Counts:
    propose_solution: int = 0
    use_tool: int = 0
    invalid_action: int = 0

    @property
    def total(self) -> int:
        return self.propose_solution + self.use_tool + self.invalid_action


@dataclass(frozen=True)
class State:
    """Everything the loop knows; a new one is made in every step."""

    history: tuple[Message, ...]
    counts: Counts = field(default_factory=Counts)
    finished: bool = False
    success: bool = False
    terminate_reason: TerminateReason | None = None
    error: str | None = None
    latest_output: dict[str, Any] = field(default_factory=dict)
    #: What was wrong with each invalid message, in order; not part of the published record.
    faults: tuple[str, ...] = ()
    #: How the episode went; in `details.jsonl`, for the published record has no place for it.
    outcome: Outcome | None = None

    def as_published(self, token_counter: dict[str, int] | None = None) -> dict[str, Any]:
        return {
            "history": [message_record(message) for message in self.history],
            "finished": self.finished,
            "success": self.success,
            "latest_output": self.latest_output,
            "agent_action_count": asdict(self.counts),
            "token_counter": dict(token_counter or {}),
            "terminate_reason": self.terminate_reason,
            "error": self.error,
        }


ASSISTANT = "Assistant:"
WRONG = "Your answer is wrong."
LAST_STEP = "You should take the last step to propose a solution."


@dataclass(frozen=True)
class ActionOutcome:
    """What came of an action: text for the agent (`None`: a wrong proposal), and whether the task is solved.

    `results` answer the native calls, in their order; `images` are what tools showed while code ran.
    """

    observation: str | None = None
    success: bool = False
    results: tuple[ToolResult, ...] = ()
    images: tuple[Image, ...] = ()


def begin(prompt: str | Message) -> State:
    message = Message("user", prompt) if isinstance(prompt, str) else prompt
    return State(history=(message,), latest_output={"content": message.content})


def act(state: State, action: Action) -> State:
    """Log the model's message and count what can be counted before anything is run."""
    history = state.history
    if action.text:
        prefix = "" if action.text.lstrip().startswith(ASSISTANT) else f"{ASSISTANT}\n"
        content = f"{prefix}{action.text}\n"
        history = (*history, Message("assistant", content, _kept_parts(action, content)))
    elif action.message is not None:  # reasoning and nothing else: kept, although it says nothing
        history = (*history, Message("assistant", "", action.message.parts))
    counts = state.counts
    if action.is_proposal:
        counts = replace(counts, propose_solution=counts.propose_solution + 1)
    elif action.kind == "invalid":
        counts = replace(counts, invalid_action=counts.invalid_action + 1)
    faults = (*state.faults, action.fault) if action.fault else state.faults
    return replace(state, history=history, counts=counts, faults=faults)


def settle(state: State, action: Action, outcome: ActionOutcome, budget: Budget) -> State:
    """Apply what came of the action, then check the budgets; proposals are checked before steps."""
    if action.kind == "error":
        return _finish(state, "error", action.outcome, error=action.error)
    if action.kind == "execute":
        state = replace(state, counts=replace(state.counts, use_tool=state.counts.use_tool + 1))
    if outcome.success:
        return _finish(state, "task_success", "solved")
    if state.counts.propose_solution >= budget.max_propose_solution:
        return _finish(state, "max_propose_steps", unsolved(action))
    if state.counts.total >= budget.max_steps:
        return _finish(state, "max_steps", unsolved(action))
    return state


def unsolved(action: Action) -> Outcome:
    """The outcome of an episode whose budget ended with this action.

    >>> unsolved(Action("execute", "")), unsolved(Action("invalid", "", ending="length"))
    ('out_of_turns', 'truncated')
    """
    if action.kind == "proposal":
        return "wrong"
    if action.kind == "execute":
        return "out_of_turns"
    endings: dict[Ending, Outcome] = {"refusal": "refused", "length": "truncated", "filtered": "filtered"}
    in_words = action.kind == "invalid" and refuses_in_words(action.text)
    return endings.get(action.ending, "refused_in_words" if in_words else "invalid_action")


def steps_left(state: State, budget: Budget) -> int:
    return budget.max_steps - state.counts.total


def proposals_left(state: State, budget: Budget) -> int:
    return budget.max_propose_solution - state.counts.propose_solution


def observation_block(state: State, outcome: ActionOutcome, budget: Budget) -> str:
    """The observation with its countdown, as the agent and the expert see it."""
    text = _observation(outcome)
    if budget.count_down:
        left, chances = steps_left(state, budget), proposals_left(state, budget)
        text += f"You have {left} steps left and {chances} chances to propose solution left.\n"
        if left <= 1:
            text += f"{LAST_STEP}\n"
    return text


def observe(
    state: State,
    outcome: ActionOutcome,
    budget: Budget,
    *,
    feedback: str = "",
    feedback_type: FeedbackType = "no_feedback",
) -> State:
    """Append the next user message; a finished episode gets none."""
    if state.finished:
        return state
    content = observation_block(state, outcome, budget)
    rest = content.removeprefix(_observation(outcome))
    if feedback:
        said = f"{FEEDBACK_HEADING}{feedback}\n"
        content, rest = content + said, rest + said
    parts: tuple[Part, ...] = ()
    if outcome.results:  # the results are the observation
        parts = (*outcome.results, *([Text(rest.strip("\n"))] if rest.strip() else []), *outcome.images)
    elif outcome.images:
        parts = (Text(content), *outcome.images)
    return replace(
        state,
        history=(*state.history, Message("user", content, parts)),
        latest_output={
            "content": content,
            "observation": outcome.observation,
            "feedback": feedback,
            "feedback_type": feedback_type,
            "success": outcome.success,
        },
    )


def _observation(outcome: ActionOutcome) -> str:
    return f"Observation:\n{WRONG if outcome.observation is None else outcome.observation}\n"


def _kept_parts(action: Action, content: str) -> tuple[Part, ...]:
    """Native calls as they are; in the text dialect, the text as it is logged and what stands beside it."""
    if action.message is None:
        return ()
    if action.message.calls:
        return action.message.parts
    beside = [part for part in action.message.parts if not isinstance(part, Text | Refusal | ToolCall)]
    return (*beside, Text(content)) if beside else ()


def _finish(state: State, reason: TerminateReason, outcome: Outcome, *, error: str | None = None) -> State:
    return replace(
        state,
        finished=True,
        success=reason == "task_success",
        terminate_reason=reason,
        error=error,
        outcome=outcome,
    )
