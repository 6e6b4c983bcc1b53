"""What an environment does for its tools: pictures, tools that open later, and three languages of failure."""

from __future__ import annotations

from typing import Any

import pytest

from histobench.mint.envs.episode import play
from histobench.mint.envs.general_env import GeneralEnv
from histobench.mint.envs.turn_loop import ActionOutcome, Budget, State
from histobench.mint.messages.parts import Image, Message, Text, ToolCall, ToolResult
from histobench.mint.tasks.reasoning import ReasoningTask
from histobench.mint.tools.base import IllustratedText, Tool, ToolArgumentError, ToolServiceError

pytestmark = pytest.mark.usefixtures("needs_sandbox")

PICTURE = Image(b"a picture")


class Look(Tool):
    name = "look"
    signature = "look(box: list[int]) -> str"
    description = "Shows a part of the region."

    def __call__(self, box: list[int]) -> str:
        if len(box) != 4:
            raise ToolArgumentError("a box has four numbers")
        return IllustratedText(f"crop {box}", [PICTURE])


class Predict(Tool):
    name = "predict"
    signature = "predict() -> str"
    description = "Asks the encoder."

    def __init__(self) -> None:
        self.opened = False

    def __call__(self) -> str:
        return "tumour: 0.9"

    def is_open(self) -> bool:
        return self.opened


class Failing(Tool):
    description = "Fails."

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.signature, self._error = name, f"{name}() -> str", error  # type: ignore[misc]

    def __call__(self) -> str:
        raise self._error


BROKEN = Failing("broken", ZeroDivisionError("division by zero"))
OFFLINE = Failing("offline", ToolServiceError("no answer after 4 tries"))


class TwoAnswers(GeneralEnv):
    """The first answer opens a tool, the second counts."""

    def __init__(self, tool: Predict) -> None:
        super().__init__(ReasoningTask("1", "What is it?", "tumour"), [tool])
        self._tool = tool

    def check(self, solution: str) -> ActionOutcome:
        if not self._tool.opened:
            self._tool.opened = True
            return ActionOutcome("Noted. predict is open now.")
        return super().check(solution)


def says(*turns: Any) -> Any:
    """An agent that makes these moves; a list is one message of calls."""
    left = list(turns)

    def agent(history: tuple[Message, ...], functions: Any = ()) -> str | Message:
        agent.functions.append([spec.name for spec in functions])  # type: ignore[attr-defined]
        turn = left.pop(0)
        return turn if isinstance(turn, str) else Message.of("assistant", turn)

    agent.functions = []  # type: ignore[attr-defined]
    return agent


def results(state: State) -> list[ToolResult]:
    return [part for message in state.history for part in message.parts if isinstance(part, ToolResult)]


@pytest.mark.slow
def test_a_picture_is_shown_in_both_dialects() -> None:
    task = ReasoningTask("1", "What is it?", "tumour")
    budget = Budget(2, 1)
    with GeneralEnv(task, [Look()]) as env:
        text = play(env, says("<execute>print(look([0, 0, 8, 8]))</execute>", "?"), prompt="Q", budget=budget)
    with GeneralEnv(task, [Look()]) as env:
        call = ToolCall("1", "look", {"box": [0, 0, 8, 8]})
        state = play(env, says([call], "?"), prompt="Q", budget=budget, functions=env.functions)
    assert text.history[2].content == state.history[2].content
    assert text.history[2].images == state.history[2].images == (PICTURE,)
    assert results(state)[0].text == "crop [0, 0, 8, 8]"


@pytest.mark.slow
def test_a_tool_opens_after_the_first_answer_in_both_dialects() -> None:
    tool = Predict()
    agent = says(
        [ToolCall("1", "predict", {})],
        [ToolCall("2", "propose_solution", {"solution": "normal"})],
        [ToolCall("3", "predict", {})],
        [ToolCall("4", "propose_solution", {"solution": "tumour"})],
    )
    with TwoAnswers(tool) as env:
        state = play(env, agent, prompt="Q", budget=Budget(9, 2), functions=env.functions)
    assert state.success
    assert [names.count("predict") for names in agent.functions] == [0, 0, 1, 1]
    texts = [result.text for result in results(state)]
    assert "there is no function predict" in texts[0]
    assert texts[1:] == ["Noted. predict is open now.", "tumour: 0.9"]
    tool.opened = False
    code = "<execute>print(predict())</execute>"
    with TwoAnswers(tool) as env:
        moves = says(code, "<solution>normal</solution>", code, "<solution>tumour</solution>")
        text = play(env, moves, prompt="Q", budget=Budget(9, 2))
    assert "PermissionError: predict is not open yet" in text.history[2].content
    assert text.history[6].content.startswith("Observation:\ntumour: 0.9\n")
    assert text.success


def test_a_mistake_a_broken_tool_and_a_silent_service_are_three_different_texts() -> None:
    calls = [ToolCall("1", "look", {"box": [1]}), ToolCall("2", "broken", {}), ToolCall("3", "offline", {})]
    with GeneralEnv(ReasoningTask("1", "Q", "a"), [Look(), BROKEN, OFFLINE]) as env:
        state = play(env, says(calls, "?"), prompt="Q", budget=Budget(2, 1), functions=env.functions)
    mistake, tool, service = results(state)
    assert mistake.text == ("Your call of look was not made: a box has four numbers. Mend it and call again.")
    assert tool.text == (
        "The tool broken failed: ZeroDivisionError: division by zero. "
        "Your call was right; the fault lies in the tool."
    )
    assert service.text == (
        "The service behind offline did not answer: no answer after 4 tries. "
        "Your call was right; go on without it, or try again."
    )
    assert [result.failed for result in (mistake, tool, service)] == [True, True, True]


def test_the_first_message_may_hold_pictures() -> None:
    prompt = Message.of("user", [Text("What is this?"), PICTURE])
    with GeneralEnv(ReasoningTask("1", "Q", "a"), []) as env:
        state = play(env, says("?"), prompt=prompt, budget=Budget(1, 1))
    assert state.history[0] == prompt
    record = state.as_published()["history"][0]
    assert record["parts"][1] == {"type": "image", "media_type": "image/png", "file": f"{PICTURE.sha256}.png"}
