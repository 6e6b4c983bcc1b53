"""Any function that answers a conversation can play."""

from __future__ import annotations

from histobench.mint.envs.action import Action
from histobench.mint.envs.episode import RequestRefusedError, play
from histobench.mint.envs.turn_loop import ActionOutcome, Budget
from histobench.mint.messages.parts import Message


class World:
    """Echoes code; the answer is 4."""

    def outcome(self, action: Action) -> ActionOutcome:
        if action.kind == "proposal":
            return ActionOutcome(success=action.content == "4")
        return ActionOutcome(action.content)


def test_the_agent_sees_the_whole_conversation() -> None:
    seen: list[int] = []

    def agent(history: tuple[Message, ...]) -> str:
        seen.append(len(history))
        return "<execute>2 + 2</execute>" if len(history) < 4 else "<solution>4</solution>"

    state = play(World(), agent, prompt="?")
    assert seen == [1, 3, 5]
    assert state.success


def test_the_expert_speaks_after_every_turn_but_the_last() -> None:
    heard: list[str] = []

    def expert(history: tuple[Message, ...], observation: str) -> str:
        heard.append(observation)
        return "Think again."

    state = play(
        World(),
        lambda history: "<solution>5</solution>",
        prompt="?",
        budget=Budget(5, 2),
        expert=expert,
        feedback_type="feedback_wo_gt",
    )
    assert len(heard) == 1
    assert heard[0].startswith("Observation:\nYour answer is wrong.\nYou have 4 steps left")
    assert state.history[2].content.endswith("\nExpert feedback:\nThink again.\n")
    assert state.latest_output["feedback_type"] == "feedback_wo_gt"
    assert state.terminate_reason == "max_propose_steps"


def test_a_refused_request_ends_the_episode() -> None:
    def agent(history: tuple[Message, ...]) -> str:
        raise RequestRefusedError("context too long")

    state = play(World(), agent, prompt="?")
    assert (state.terminate_reason, state.error, state.counts.total) == ("error", "context too long", 0)
