"""Another rule applied to finished episodes, without asking the model again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from histobench.mint.envs.action import classify
from histobench.mint.envs.general_env import GeneralEnv
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.tasks.base import CheckerError, Rule, Task, checked


@dataclass(frozen=True)
class Rescored:
    """The success under a rule.

    `open`: the stored run stopped at an answer that this rule does not accept, with budget left; what the
    model would have done then is unknown, and the episode counts as failed.
    """

    success: bool
    open: bool = False


def rescore(
    messages: Sequence[str],
    task: Task,
    rule: Rule,
    *,
    stored_success: bool,
    budget: Budget,
    open_env: Callable[[Task], GeneralEnv] | None = None,
    won: bool | None = None,
) -> Rescored:
    """Check the proposals of an episode again, in order."""
    task = copy.copy(task)
    task.rule = rule
    actions = [classify(text) for text in messages]
    proposals = [action for action in actions if action.is_proposal]
    unspent = len(proposals) < budget.max_propose_solution and len(actions) < budget.max_steps
    answers = [action.content for action in proposals if action.kind == "proposal"]
    if task.decided_by_acting:
        # Anyone who ran out of actions under any rule has not won, so a stored failure stays one when strict.
        if rule == "strict" and not stored_success:
            return Rescored(False)
        if open_env is None:
            success = won if rule == "strict" and won is not None else stored_success
            return Rescored(success, open=stored_success and not success and unspent)
        with open_env(task) as env:
            success = any(env.outcome(action).success for action in actions if not action.is_proposal)
    else:
        success = any(_accepts(task, answer) for answer in answers)
    return Rescored(success, open=stored_success and not success and unspent)


def _accepts(task: Task, answer: str) -> bool:
    try:
        return checked(task, answer)
    except CheckerError:
        return False
