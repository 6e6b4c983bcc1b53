"""Plays one episode: any agent that answers a conversation, in any environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from histobench.mint.envs.action import Action, classify, provider_error
from histobench.mint.envs.state import Budget, FeedbackType, Message, State
from histobench.mint.envs.turn_loop import Outcome, act, begin, observation_block, observe, settle

#: Reads the conversation, writes the next message.
Agent = Callable[[tuple[Message, ...]], str]
#: Reads the conversation and the new observation, writes the feedback ("" is none).
Expert = Callable[[tuple[Message, ...], str], str]


class RequestRefusedError(Exception):
    """The agent's provider refuses the request for good (context too long); this ends the episode."""


class Environment(Protocol):
    """What acts on the world."""

    def outcome(self, action: Action) -> Outcome:
        """What comes of an action."""


def play(
    environment: Environment,
    agent: Agent,
    *,
    prompt: str,
    budget: Budget = Budget(),  # noqa: B008 - immutable
    expert: Expert | None = None,
    feedback_type: FeedbackType = "no_feedback",
    watch: Callable[[State], None] | None = None,
) -> State:
    """Turns until the task is solved or a budget is spent; `watch` sees every new state.

    >>> class World:
    ...     def outcome(self, action):
    ...         return Outcome(success=action.content == "4")
    >>> state = play(World(), lambda history: "<solution>4</solution>", prompt="What is 2 + 2?")
    >>> state.success, state.terminate_reason
    (True, 'task_success')
    """
    state = begin(prompt)
    while not state.finished:
        action = _ask(agent, state)
        state = act(state, action)
        outcome = environment.outcome(action)
        state = settle(state, action, outcome, budget)
        feedback = ""
        if expert is not None and not state.finished:
            feedback = expert(state.history, observation_block(state, outcome, budget))
        state = observe(state, outcome, budget, feedback=feedback, feedback_type=feedback_type)
        if watch is not None:
            watch(state)
    return state


def _ask(agent: Agent, state: State) -> Action:
    try:
        return classify(agent(state.history))
    except RequestRefusedError as error:
        return provider_error(str(error))
