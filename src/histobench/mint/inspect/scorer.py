"""The verdict was reached while the episode was played; the scorer reports it."""

from __future__ import annotations

from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, grouped, scorer, stderr
from inspect_ai.solver import TaskState

from histobench.core.errors import HistobenchError
from histobench.mint.envs.action import classify
from histobench.mint.inspect.solver import EPISODE


@scorer(metrics=[accuracy(), stderr(), grouped(accuracy(), "dataset", all=False)])
def task_success() -> Scorer:
    """Whether the task was solved within its budget, and what the agent did."""

    async def score(state: TaskState, target: Target) -> Score:
        episode = state.store.get(EPISODE)
        if episode is None:
            raise HistobenchError(f"sample {state.sample_id} was not played by histobench/mint_episode")
        end = episode["state"]
        answers = [classify(message.text) for message in state.messages if message.role == "assistant"]
        proposals = [action.content for action in answers if action.kind == "proposal"]
        return Score(
            value=CORRECT if end["success"] else INCORRECT,
            answer=proposals[-1] if proposals else None,
            explanation=end["terminate_reason"],
            metadata={**end["agent_action_count"], "terminate_reason": end["terminate_reason"]},
        )

    return score
