"""The turn loop of the published benchmark as pure functions: text in, text out.

A turn is `act` (log and count what the model did), `settle` (apply what came of it, check the budgets) and,
while the episode goes on, `observe` (the next user message). Running code, checking answers and asking an
expert happen between these calls, elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from histobench.mint.envs.action import Action
from histobench.mint.envs.state import Budget, FeedbackType, Message, State, TerminateReason

ASSISTANT = "Assistant:"
WRONG = "Your answer is wrong."
HELP = """I don't understand your input. 
To run Python code, put it between <execute> and </execute>: <execute>print(1 + 1)</execute>
To answer, put your solution between <solution> and </solution>: The answer is <solution>2</solution>
"""


@dataclass(frozen=True)
class Outcome:
    """What came of an action: text for the agent (`None`: a wrong proposal), and whether the task is solved.

    `counted` is false when the tool itself (not the agent's code) failed: such a turn is free.
    """

    observation: str | None = None
    success: bool = False
    counted: bool = True


def begin(prompt: str) -> State:
    """The state before the first turn."""
    return State(history=(Message("user", prompt),), latest_output={"content": prompt})


def act(state: State, action: Action) -> State:
    """Log the model's message and count what can be counted before anything is run."""
    history = state.history
    if action.text:
        prefix = "" if action.text.lstrip().startswith(ASSISTANT) else f"{ASSISTANT}\n"
        history = (*history, Message("assistant", f"{prefix}{action.text}\n"))
    counts = state.counts
    if action.is_proposal:
        counts = replace(counts, propose_solution=counts.propose_solution + 1)
    elif action.kind == "invalid":
        counts = replace(counts, invalid_action=counts.invalid_action + 1)
    return replace(state, history=history, counts=counts)


def settle(state: State, action: Action, outcome: Outcome, budget: Budget) -> State:
    """Apply what came of the action, then check the budgets; proposals are checked before steps."""
    if action.kind == "error":
        return _finish(state, "error", error=action.error)
    if action.kind == "execute" and outcome.counted:
        state = replace(state, counts=replace(state.counts, use_tool=state.counts.use_tool + 1))
    if outcome.success:
        return _finish(state, "task_success")
    if state.counts.propose_solution >= budget.max_propose_solution:
        return _finish(state, "max_propose_steps")
    if state.counts.total >= budget.max_steps:
        return _finish(state, "max_steps")
    return state


def steps_left(state: State, budget: Budget) -> int:
    """Counted actions that remain."""
    return budget.max_steps - state.counts.total


def proposals_left(state: State, budget: Budget) -> int:
    """Proposals that remain."""
    return budget.max_propose_solution - state.counts.propose_solution


def observation_block(state: State, outcome: Outcome, budget: Budget) -> str:
    """The observation with its countdown, as the agent and the expert see it."""
    text = f"Observation:\n{WRONG if outcome.observation is None else outcome.observation}\n"
    if budget.count_down:
        left, chances = steps_left(state, budget), proposals_left(state, budget)
        text += f"You have {left} steps left and {chances} chances to propose solution left.\n"
        if left <= 1:
            text += "You should take the last step to propose a solution.\n"
    return text


def observe(
    state: State,
    outcome: Outcome,
    budget: Budget,
    *,
    feedback: str = "",
    feedback_type: FeedbackType = "no_feedback",
) -> State:
    """Append the next user message; a finished episode gets none."""
    if state.finished:
        return state
    content = observation_block(state, outcome, budget)
    if feedback:
        content += f"\nExpert feedback:\n{feedback}\n"
    return replace(
        state,
        history=(*state.history, Message("user", content)),
        latest_output={
            "content": content,
            "observation": outcome.observation,
            "feedback": feedback,
            "feedback_type": feedback_type,
            "success": outcome.success,
        },
    )


def _finish(state: State, reason: TerminateReason, *, error: str | None = None) -> State:
    return replace(
        state, finished=True, success=reason == "task_success", terminate_reason=reason, error=error
    )
