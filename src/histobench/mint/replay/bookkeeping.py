"""Gate 1: the loop's books on recorded texts, with nothing executed."""

from __future__ import annotations

from histobench.mint.envs.action import classify, provider_error
from histobench.mint.envs.turn_loop import (
    ActionOutcome,
    Budget,
    act,
    begin,
    observe,
    proposals_left,
    settle,
    steps_left,
)
from histobench.mint.replay.recording import Recording


def book_differences(recording: Recording) -> list[str]:
    """What the loop books differently from the recording; empty when all agrees."""
    budget = Budget(recording.max_steps, recording.max_propose)
    state = begin("")
    wrong: list[str] = []
    for number, turn in enumerate(recording.turns, start=1):
        if state.finished:
            wrong.append(f"ended before turn {number}")
            break
        action = classify(turn.assistant)
        if action.kind != turn.kind:
            wrong.append(f"turn {number} is {action.kind}, recorded {turn.kind}")
        last = number == len(recording.turns)
        solved = turn.verdict == "correct" or (last and recording.terminate_reason == "task_success")
        outcome = ActionOutcome(turn.observation or "", success=solved)
        state = settle(act(state, action), action, outcome, budget)
        left = (steps_left(state, budget), proposals_left(state, budget))
        if turn.steps_left is not None and left != (turn.steps_left, turn.proposals_left):
            wrong.append(f"turn {number} leaves {left}, recorded {(turn.steps_left, turn.proposals_left)}")
        state = observe(state, outcome, budget, feedback=turn.feedback)
    if recording.terminate_reason == "error" and not state.finished:
        action = provider_error(recording.error or "error")
        state = settle(act(state, action), action, ActionOutcome(), budget)
    ending = (state.terminate_reason, state.success)
    if ending != (recording.terminate_reason, recording.success):
        wrong.append(f"ends as {ending}, recorded {(recording.terminate_reason, recording.success)}")
    for name, count in recording.counts.items():
        if getattr(state.counts, name) != count:
            wrong.append(f"{name} is {getattr(state.counts, name)}, recorded {count}")
    return wrong
