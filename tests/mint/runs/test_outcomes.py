"""How episodes end and what is kept of each turn: outcomes, broken checkers, limits, provenance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.agents.provenance import request_of_turn
from histobench.mint.configs import datasets
from histobench.mint.results.stored_episode import read_episodes
from histobench.mint.tasks.reasoning import ReasoningTask

pytestmark = pytest.mark.usefixtures("one_sandbox")


class BrokenTask(ReasoningTask):
    """Its checker raises, and says the reference."""

    def success(self, solution: str) -> bool:
        raise ValueError(f"the reference is {self.reference}")  # the line that must be named


def run(server: Any, data: Path, output: Path, *more: str, agent: str = "openai") -> int:
    arguments = ["--agent", f"{agent}:some-model@{server.url}", "--tasks", "gsm8k", "--data", str(data)]
    return main(["mint", "run", *arguments, "-o", str(output), "--attempts", "2", *more])


def details(output: Path) -> list[dict[str, Any]]:
    files = sorted(output.rglob("details.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_every_ending_is_an_outcome_of_its_own(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = {"content": None, "refusal": "I will not."}
    withheld = replies.Reply({"error": {"code": "content_filter", "message": "filtered"}}, status=400)
    endings: list[tuple[str, Any]] = [
        ("solved", replies.chat("<solution>1</solution>")),
        ("wrong", replies.chat("<solution>-7</solution>")),
        ("out_of_turns", replies.chat("<execute>1</execute>")),
        ("refused_in_words", replies.chat("I'm sorry, but I can't assist with that request.")),
        ("truncated", replies.chat("<execute>so mu", finish="length")),
        ("refused", replies.Reply({"choices": [{"message": refusal, "finish_reason": "stop"}]})),
        ("filtered", replies.chat(None, finish="content_filter")),
        ("filtered", withheld),
        ("too_long", replies.Reply({"error": {"code": "context_length_exceeded"}}, status=400)),
        ("provider_failure", replies.Reply({"error": "bad"}, status=418)),
    ]

    def answer(body: dict[str, Any], number: int) -> Any:
        asked = next(i for i in range(10) if f"What is {i} + 1?" in body["messages"][0]["content"])
        return endings[asked][1]

    server.answer = answer
    out = tmp_path / "out"
    assert run(server, make_data(10), out, "--k", "1") == 1
    assert {record["task_id"]: record["outcome"] for record in details(out)} == {
        number: name for number, (name, _) in enumerate(endings) if name != "provider_failure"
    }
    filtered = next(record for record in details(out) if record["task_id"] == 6)
    assert (filtered["tokens"], filtered["turns"][0]["finish"]) == (15, "content_filter")
    assert sum("What is 6 + 1?" in body.decode() for body in server.bodies) == 1  # it was not asked again
    capsys.readouterr()
    assert main(["mint", "table", str(out)]) == 0
    said = capsys.readouterr().out
    assert "11.11" in said  # one of nine: what the provider failed is played again
    title, row = (line.split() for line in said.splitlines() if "outcomes" in line or "some-model:" in line)
    assert title[-2:] == ["provider", "failure"]
    assert row == ["some-model:", "1", "1", "1", "1", "1", "1", "2", "1", "(1)"]
    assert main(["mint", "table", str(out), "--failures", "wrong,out_of_turns"]) == 0
    assert "33.33" in capsys.readouterr().out
    assert main(["mint", "table", str(out), "--failures", "all"]) == 0
    assert "10.00" in capsys.readouterr().out
    assert main(["mint", "table", str(out), "--failures", "unlucky"]) == 2
    assert list(hb.mint.open_runs(out).episodes()["outcome"]).count("filtered") == 2


@pytest.mark.slow
def test_a_checker_that_raises_stops_the_run_and_never_reaches_the_agent(
    tmp_path: Path,
    make_data: Callable[..., Path],
    server: Any,
    replies: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    info = {"class": f"{__name__}:BrokenTask", "type": "reasoning"}
    monkeypatch.setitem(datasets.TASK_INFO_MAP, "broken", info)
    server.answer = lambda body, number: replies.chat("<solution>5</solution>")
    data, out = make_data(20, "broken"), tmp_path / "out"
    options = ("--tasks", "broken", "--concurrency", "1")
    assert run(server, data, out, *options) == 1
    said = " ".join(capsys.readouterr().out.split())
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if "the line that must be named" in text
    )
    assert "stopped: 3 times the checker of task" in said
    assert f"{Path(__file__).name}:{line}" in said
    assert len(server.requests) == 3
    assert not any("the reference is" in body.decode() for body in server.bodies)
    notes = next(out.rglob("provider_failures.jsonl")).read_text().splitlines()
    assert [json.loads(note)["outcome"] for note in notes] == ["checker_error"] * 3
    with pytest.raises(HistobenchError, match="checker of task"):
        hb.mint.run(
            f"openai:some-model@{server.url}", "broken", data=data, output=tmp_path / "python", concurrency=1
        )


def test_a_wrong_key_raises_in_python(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": "invalid api key"}, status=401)
    with pytest.raises(HistobenchError, match=r"4 of 4 episodes are missing: .*HTTP 401.*invalid api key"):
        hb.mint.run(f"openai:m@{server.url}", "gsm8k", data=make_data(4), output=tmp_path / "out")


def test_a_run_that_ended_early_says_why(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any
) -> None:
    server.answer = lambda body, number: replies.chat("<solution>1</solution>")
    (tmp_path / "prices.yaml").write_text("m: [0, 1000]\n")
    limits = {"prices": tmp_path / "prices.yaml", "max_tokens": 5, "max_cost": 0.011, "concurrency": 1}
    runs = hb.mint.run(
        f"openai:m@{server.url}", "gsm8k", data=make_data(4), output=tmp_path / "out", **limits
    )
    assert not runs.complete
    assert "incomplete" in repr(runs)
    assert "of at most $0.0110 spent" in repr(runs)


@pytest.mark.parametrize(
    ("limit", "turns"), [(("--episode-tokens", "20000"), 1), (("--episode-cost", "0.00001"), 0)]
)
def test_an_episode_has_limits_of_its_own(
    limit: tuple[str, str],
    turns: int,
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
) -> None:
    server.answer = lambda body, number: replies.chat("<execute>1</execute>", read=15000)
    (tmp_path / "prices.yaml").write_text("some-model: [1, 1]\n")
    out = tmp_path / "out"
    assert run(server, make_data(2), out, *limit, "--prices", str(tmp_path / "prices.yaml")) == 0
    assert {record["outcome"] for record in details(out)} == {"over_limit"}
    assert len(server.requests) == 2 * turns
    assert all("limit of the episode" in line.state["error"] for line in stored(out))


def test_an_episode_whose_time_is_over_ends(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply(replies.chat("Hm.").raw, delay=30)
    assert run(server, make_data(1), tmp_path / "out", "--episode-seconds", "0.3") == 0
    (record,) = details(tmp_path / "out")
    assert record["outcome"] == "over_limit"
    assert record["seconds"] < 10


def stored(output: Path) -> list[Any]:
    return [episode for file in sorted(output.rglob("results.jsonl")) for episode in read_episodes(file)]


USAGE = {"input_tokens": 12, "output_tokens": 3}
CALL = {"name": "python", "arguments": '{"code": "print(40 + 2)"}'}
#: Format -> what the server says in the first turn (a call, with whatever must go back) and in the second.
NATIVE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "openai": (
        {
            "id": "c1",
            "model": "some-model-0613",
            "system_fingerprint": "fp_1",
            "choices": [
                {
                    "message": {
                        "content": None,
                        "reasoning_content": "hm",
                        "tool_calls": [{"id": "t1", "type": "function", "function": CALL}],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        },
        {
            "id": "c2",
            "model": "some-model-0613",
            "choices": [{"message": {"content": "42, é"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        },
    ),
    "responses": (
        {
            "id": "r1",
            "model": "some-model-0613",
            "status": "completed",
            "output": [
                {"type": "reasoning", "id": "x", "summary": [], "encrypted_content": "abc"},
                {"type": "function_call", "call_id": "t1", **CALL},
            ],
            "usage": USAGE,
        },
        {
            "id": "r2",
            "model": "some-model-0613",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "42, é"}]}],
            "usage": USAGE,
        },
    ),
    "anthropic": (
        {
            "id": "m1",
            "model": "some-model-0613",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "python", "input": {"code": "print(40 + 2)"}},
            ],
            "stop_reason": "tool_use",
            "usage": USAGE,
        },
        {
            "id": "m2",
            "model": "some-model-0613",
            "content": [{"type": "text", "text": "42, é"}],
            "stop_reason": "end_turn",
            "usage": USAGE,
        },
    ),
    "gemini": (
        {
            "responseId": "g1",
            "modelVersion": "some-model-0613",
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {
                                "functionCall": {"name": "python", "args": {"code": "print(40 + 2)"}},
                                "thoughtSignature": "s",
                            }
                        ]
                    },
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3},
        },
        {
            "responseId": "g2",
            "modelVersion": "some-model-0613",
            "candidates": [{"content": {"parts": [{"text": "42, é"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["native", "text"])
@pytest.mark.parametrize("kind", [*NATIVE, "vllm"])
def test_the_request_of_every_turn_can_be_built_again_from_the_record(
    kind: str,
    calls: str,
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
) -> None:
    """Byte for byte, also where the server refused a parameter and it was asked again without."""
    first, then = NATIVE["openai" if kind == "vllm" else kind]
    accepted: list[bytes] = []

    def answer(body: dict[str, Any], number: int) -> Any:
        if "temperature" in {**body, **body.get("generationConfig", {})}:
            return replies.Reply(
                {"error": "Unsupported parameter: 'temperature' is not supported."}, status=400
            )
        accepted.append(server.bodies[number])
        return replies.Reply(first if len(accepted) == 1 else then)

    server.answer = answer
    out = tmp_path / "out"
    options = ("--k", "3", "--calls", calls, "--top-p", "0.9", "--concurrency", "1")
    assert run(server, make_data(1), out, *options, agent=kind) == 0
    (episode,) = stored(out)
    turns = episode.details["turns"]
    assert [request_of_turn(episode, number) for number in range(len(turns))] == accepted
    assert len(accepted) == 3
    for turn in turns:
        assert turn["model"] == "some-model-0613"
        assert (turn["usage"]["prompt_tokens"], turn["usage"]["completion_tokens"]) == (12, 3)
        assert "temperature" not in json.dumps(turn["sent"])  # it was refused, so the record must not say 0.0
        assert turn["without"] == ["temperature"]
        assert turn["seconds"] >= 0
        assert turn["finish"]
    assert turns[0].get("retries") == 1
    assert len({turn["id"] for turn in turns}) == 2
    stops = turns[0]["sampling"].get("stop", [])
    assert bool(stops) == (calls == "text")
    (note,) = [json.loads(line) for line in next(out.rglob("runs.jsonl")).read_text().splitlines()]
    assert note["run"] == episode.details["run"]
    assert {"histobench", "sandbox", "prices", "python", "task", "data"} <= note.keys()
    assert len(note["data"]["sha256"]) == 64


@pytest.mark.slow
def test_the_prices_and_the_data_of_a_run_are_kept(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answer = lambda body, number: replies.chat("<solution>1</solution>")
    (tmp_path / "prices.yaml").write_text("some-model: [1000, 2000]\n")
    out = tmp_path / "out"
    assert run(server, make_data(2), out, "--prices", str(tmp_path / "prices.yaml")) == 0
    (note,) = [json.loads(line) for line in next(out.rglob("runs.jsonl")).read_text().splitlines()]
    assert note["prices"]["some-model"]["written"] == 2000
    (turn,) = next(record for record in details(out) if record["task_id"] == 0)["turns"]
    assert turn["cost"] == pytest.approx((10 * 1000 + 5 * 2000) / 1e6)
    capsys.readouterr()
    data = make_data(3)
    assert run(server, data, out) == 2  # the file of the tasks has changed
    assert "data was" in capsys.readouterr().err


def test_records_of_earlier_versions_still_open(tmp_path: Path) -> None:
    folder = tmp_path / "m/F=None/max2_p2+tool+cd/reasoning/gsm8k"
    folder.mkdir(parents=True)
    lines = []
    for number, (said, reason) in enumerate(
        [("<solution>3</solution>", "max_propose_steps"), ("Hm.", "max_steps"), ("", "error")]
    ):
        history = [
            {"role": "user", "content": "Task:"},
            {"role": "assistant", "content": f"Assistant:\n{said}\n"},
        ]
        counts = {"propose_solution": 0, "use_tool": 0, "invalid_action": 0}
        state = {"history": history, "finished": True, "success": False, "latest_output": {}, "error": None}
        state |= {"agent_action_count": counts, "token_counter": {}, "terminate_reason": reason}
        task = {"task_name": "reasoning", "task_id": number, "prompt": "", "reference": "", "metadata": {}}
        lines.append(json.dumps({"state": state, "task": task}))
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    outcomes = [episode.outcome.outcome for episode in stored(tmp_path)]
    assert outcomes == ["wrong", "invalid_action", "too_long"]
