"""Native calls beside the text dialect: the same calls, the same observations, counted by the same rule."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.mint.envs.action import ACTION_GRAMMAR, SOLUTION_GRAMMAR, classify

pytestmark = pytest.mark.usefixtures("one_sandbox")

#: The way a question is answered -> the turns: code, or a solution, or words alone.
TURNS: tuple[list[tuple[str, str]], ...] = (
    [("solution", "{right}")],
    [("code", "x = {n} + 1\nprint(x)"), ("code", "print(x)"), ("solution", "{right}")],
    [("solution", "-7"), ("solution", "-8")],
    [("words", "Hm."), ("solution", "{right}")],
    [("code", "1 / 0"), ("code", "x = 1"), ("solution", "-7"), ("solution", "{right}")],
)


def turn_of(talk: list[dict[str, Any]]) -> tuple[str, str]:
    """What the scripted model does next, whichever dialect it speaks."""
    number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
    turns = TURNS[number % len(TURNS)]
    kind, words = turns[min(sum(entry["role"] == "assistant" for entry in talk), len(turns) - 1)]
    return kind, words.format(n=number, right=number + 1)


def as_text(kind: str, words: str) -> str:
    return {"code": f"<execute>{words}</execute>", "solution": f"<solution>{words}</solution>"}.get(
        kind, words
    )


def call(name: str, arguments: Any, id: str = "call_a") -> dict[str, Any]:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


def chat_calls(*calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}


def as_calls(kind: str, words: str, replies: Any) -> Any:
    if kind == "words":
        return replies.chat(words)
    name, argument = ("python", "code") if kind == "code" else ("propose_solution", "solution")
    return replies.Reply(chat_calls(call(name, {argument: words})))


def play(server: Any, data: Path, output: Path, *flags: str) -> int:
    agent = f"openai:m@{server.url}"
    arguments = ["--tasks", "gsm8k", "--data", str(data), "--cache", "none", "--results", str(output)]
    return main(["mint", "run", "--agent", agent, *arguments, *flags])


@pytest.mark.slow
def test_the_same_calls_give_the_same_observations_in_both_dialects(lab: Any) -> None:
    data = lab.make_data(10)
    lab.server.answer = lambda body, number: lab.replies.chat(as_text(*turn_of(body["messages"])))
    assert play(lab.server, data, lab.tmp_path / "text") == 0
    lab.server.answer = lambda body, number: as_calls(*turn_of(body["messages"]), lab.replies)
    assert play(lab.server, data, lab.tmp_path / "native", "--calls", "native") == 0
    text, native = (
        {line["task"]["task_id"]: line["state"] for line in lab.script.lines(lab.tmp_path / name)}
        for name in ("text", "native")
    )
    assert text.keys() == native.keys()
    assert len(text) == 10
    for task, state in text.items():
        other = native[task]
        for name in ("success", "terminate_reason", "agent_action_count", "error"):
            assert state[name] == other[name], (task, name)
        said = [entry["content"] for entry in state["history"][1:] if entry["role"] == "user"]
        seen = [entry["content"] for entry in other["history"][1:] if entry["role"] == "user"]
        invalid = [words.startswith("Observation:\nI don't understand") for words in said]
        assert [words for words, no in zip(said, invalid, strict=True) if not no] == [
            words for words, no in zip(seen, invalid, strict=True) if not no
        ]
        # The transcript of a native turn is a turn of the text dialect.
        written = [entry["content"] for entry in state["history"] if entry["role"] == "assistant"]
        transcribed = [entry["content"] for entry in other["history"] if entry["role"] == "assistant"]
        assert [classify(words).content for words in written] == [
            classify(words).content for words in transcribed
        ]


@pytest.mark.slow
def test_results_go_back_as_the_provider_wants_them(lab: Any) -> None:
    lab.server.answer = lambda body, number: as_calls(*turn_of(body["messages"]), lab.replies)
    play(lab.server, lab.make_data(2), lab.tmp_path / "out", "--calls", "native")
    last = max(
        (body for body in lab.server.requests if "What is 1 + 1?" in str(body)),
        key=lambda b: len(b["messages"]),
    )
    roles = [entry["role"] for entry in last["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool", "user"]
    assert last["messages"][2] == {"role": "tool", "tool_call_id": "call_a", "content": "2"}
    assert last["messages"][3]["content"].startswith("You have 4 steps left")
    names = [tool["function"]["name"] for tool in last["tools"]]
    assert names == ["python", "wikipedia_search", "propose_solution"]
    assert last["tools"][0]["function"]["parameters"]["required"] == ["code"]
    assert "stop" not in last  # the text dialect's


@pytest.mark.slow
def test_an_answer_is_one_action_however_many_calls_it_holds(lab: Any) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        turn = sum(entry["role"] == "assistant" for entry in body["messages"])
        many = (
            [call("python", {"code": "x = 20"}, "a"), call("python", {"code": "print(x + 1)"}, "b")],
            [call("python", "{not json", "c"), call("python", {"code": "print(x)"}, "d")],
            [call("pyton", {"code": "1"}, "e"), call("python", {"cod": "1"}, "f")],
            [call("python", {"code": "print('no')"}, "g"), call("propose_solution", {"solution": "1"}, "h")],
        )
        return lab.replies.Reply(chat_calls(*many[turn]))

    lab.server.answer = answer
    assert play(lab.server, lab.make_data(1), lab.tmp_path / "out", "--calls", "native") == 0
    (line,) = lab.script.lines(lab.tmp_path / "out")
    counts = line["state"]["agent_action_count"]
    assert counts == {"use_tool": 2, "invalid_action": 1, "propose_solution": 1}
    assert line["state"]["success"]
    results = {
        part["call_id"]: (part["text"], part.get("failed", False))
        for entry in line["state"]["history"]
        for part in entry.get("parts", ())
        if part["type"] == "tool_result"
    }
    assert results["a"] == ("[Executed Successfully with No Output]", False)
    assert results["b"] == ("21", False)
    assert results["c"] == (
        "Your call of python was not made: the arguments are not a JSON object. Mend it and call again.",
        True,
    )
    assert results["d"] == ("20", False)
    assert "there is no function pyton; known: python, wikipedia_search" in results["e"][0]
    assert "the argument code is missing" in results["f"][0]
    assert "g" not in results  # the episode ended with the proposal


def test_a_call_beside_a_wrong_proposal_is_not_made(lab: Any) -> None:
    both = [call("python", {"code": "print('no')"}, "a"), call("propose_solution", {"solution": "-7"}, "b")]
    lab.server.answer = lambda body, number: lab.replies.Reply(chat_calls(*both))
    play(lab.server, lab.make_data(1), lab.tmp_path / "out", "--calls", "native")
    parts = lab.script.lines(lab.tmp_path / "out")[0]["state"]["history"][2]["parts"]
    assert [part.get("text") for part in parts[:2]] == [
        "Your call of python was not made: a turn that proposes a solution makes no other calls.",
        "Your answer is wrong.",
    ]


@pytest.mark.slow
def test_a_native_run_is_resumed_and_kept_apart_from_the_text_dialect(lab: Any) -> None:
    lab.server.answer = lambda body, number: as_calls(*turn_of(body["messages"]), lab.replies)
    data = lab.make_data(3)
    assert play(lab.server, data, lab.tmp_path, "--calls", "native") == 0
    asked = len(lab.server.requests)
    assert play(lab.server, data, lab.tmp_path, "--calls", "native") == 0
    assert len(lab.server.requests) == asked
    assert (lab.tmp_path / "m/F=None/max5_p2+tool+cd+native/reasoning/gsm8k/results.jsonl").is_file()
    lab.capsys.readouterr()
    assert main(["mint", "table", str(lab.tmp_path)]) == 0
    assert "m+native" in lab.capsys.readouterr().out


@pytest.mark.slow
def test_recorded_text_is_played_as_native_calls_with_the_same_result(lab: Any) -> None:
    data, recording = lab.make_data(10), lab.make_recording(10)
    sums = {}
    for calls in ("text", "native"):
        output = lab.tmp_path / calls
        arguments = ["--tasks", "gsm8k", "--data", str(data), "--results", str(output), "--calls", calls]
        assert main(["mint", "run", "--agent", f"replay:{recording}", *arguments]) == 0
        sums[calls] = lab.script.totals(output)
    assert sums["text"] == sums["native"]


def test_the_last_step_gets_the_grammar_of_a_solution(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<execute>1</execute>")
    arguments = ["--tasks", "gsm8k", "--data", str(lab.make_data(1)), "--results", str(lab.tmp_path / "out")]
    given = ["--agent", f"openai:m@{lab.server.url}", "--k", "3", *arguments]
    assert main(["mint", "run", "--constrain", *given]) == 0
    sent = [body["grammar"] for body in lab.server.requests]
    assert sent == [ACTION_GRAMMAR, ACTION_GRAMMAR, SOLUTION_GRAMMAR]


def test_native_calls_are_required_instead_of_a_grammar(lab: Any) -> None:
    # A small model behind llama.cpp wrote its calls as text in 40 of 40 episodes.
    lab.server.answer = lambda body, number: lab.replies.chat("I would call propose_solution.")
    arguments = ["--tasks", "gsm8k", "--data", str(lab.make_data(1)), "--results", str(lab.tmp_path / "out")]
    given = ["--agent", f"openai:m@{lab.server.url}", "--calls", "native", "--k", "2", *arguments]
    assert main(["mint", "run", "--constrain", *given]) == 0
    sent = [(body["tool_choice"], "grammar" in body) for body in lab.server.requests]
    assert sent == [("required", False)] * 2
