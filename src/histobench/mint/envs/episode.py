"""Plays one episode: any agent that answers a conversation, in any environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from histobench.mint.envs.action import Action, Outcome, classify_message, provider_error
from histobench.mint.envs.native_calls import read_calls
from histobench.mint.envs.turn_loop import (
    ActionOutcome,
    Budget,
    FeedbackType,
    State,
    act,
    begin,
    observation_block,
    observe,
    settle,
)
from histobench.mint.messages.parts import Message, ToolSpec

#: Reads the conversation (and, where calls are native, the functions of this turn), writes the next message.
Agent = Callable[..., "str | Message"]
#: Reads the conversation and the new observation, writes the feedback ("" is none).
Expert = Callable[[tuple[Message, ...], str], str]


class RequestRefusedError(Exception):
    """The question is not answered, for good (context too long, a filter, a limit); the episode ends."""

    def __init__(self, message: str, outcome: Outcome = "too_long") -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome


class Environment(Protocol):
    """What acts on the world."""

    def outcome(self, action: Action) -> ActionOutcome:
        """What comes of an action."""


def play(
    environment: Environment,
    agent: Agent,
    *,
    prompt: str | Message,
    budget: Budget = Budget(),  # noqa: B008 - immutable
    expert: Expert | None = None,
    feedback_type: FeedbackType = "no_feedback",
    functions: Callable[[], Sequence[ToolSpec]] | None = None,
) -> State:
    """Turns until the task is solved or a budget is spent.

    `functions` makes calls native: it is asked in every turn which functions the model may call in it, so
    that tools can open and close during an episode. Without it the model writes code and solutions as text.

    >>> class World:
    ...     def outcome(self, action):
    ...         return ActionOutcome(success=action.content == "4")
    >>> state = play(World(), lambda history: "<solution>4</solution>", prompt="What is 2 + 2?")
    >>> state.success, state.terminate_reason
    (True, 'task_success')
    """
    state = begin(prompt)
    while not state.finished:
        action = _ask(agent, state, functions)
        state = act(state, action)
        outcome = environment.outcome(action)
        state = settle(state, action, outcome, budget)
        feedback = ""
        if expert is not None and not state.finished:
            feedback = expert(state.history, observation_block(state, outcome, budget))
        state = observe(state, outcome, budget, feedback=feedback, feedback_type=feedback_type)
    return state


def _ask(agent: Agent, state: State, functions: Callable[[], Sequence[ToolSpec]] | None) -> Action:
    try:
        if functions is None:
            return classify_message(_as_message(agent(state.history)))
        given = tuple(functions())
        return read_calls(_as_message(agent(state.history, given)), given)
    except RequestRefusedError as error:
        return provider_error(str(error), error.outcome)


def _as_message(reply: str | Message) -> Message:
    return Message("assistant", reply) if isinstance(reply, str) else reply
