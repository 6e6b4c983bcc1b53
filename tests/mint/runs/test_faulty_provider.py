"""Whole runs over real HTTP, in every format and against servers that fail: nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_sandbox")]


#: With two at a time six failures in a row end a run: there are at most five.
FAILING = [0, 1, 2, 3, 4, 8, 9]


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histobench.core.http.RetryPolicy.pause", lambda self, failures: 0.01)


def run(server: Any, data: Path, output: Path, *more: str) -> int:
    agent = f"openai:some-model@{server.url}"
    arguments = ["--agent", agent, "--tasks", "gsm8k", "--data", str(data), "-o", str(output), *more]
    return main(["mint", "run", *arguments, "--attempts", "6"])


def test_a_provider_failure_is_kept_apart_and_made_up_for(lab: Any, no_pause: None) -> None:
    data = lab.make_data(12)

    def answer(body: dict[str, Any], number: int) -> Any:
        broken = any(f"What is {failing} + 1?" in body["messages"][0]["content"] for failing in FAILING)
        return lab.replies.Reply({}, status=503) if broken else lab.replies.chat(lab.script.answer(body))

    lab.server.answer = answer
    assert run(lab.server, data, lab.tmp_path / "out", "--concurrency", "2") == 1
    said = lab.capsys.readouterr().out
    assert "5 of 12 episodes" in said
    assert "not counted as a failure of the model" in said
    assert "7 episodes are missing" in said
    ids, _ = lab.script.totals(lab.tmp_path / "out")
    assert ids == sorted({*map(str, range(12))} - {*map(str, FAILING)})
    kept = next((lab.tmp_path / "out").rglob("provider_failures.jsonl")).read_text()
    failures = [json.loads(line) for line in kept.splitlines()]
    assert sorted(failure["task_id"] for failure in failures) == FAILING
    before = len(lab.server.requests)
    lab.server.answer = lambda body, number: lab.replies.chat(lab.script.answer(body))
    assert run(lab.server, data, lab.tmp_path / "out") == 0
    ids, _ = lab.script.totals(lab.tmp_path / "out")
    assert len(ids) == len(set(ids)) == 12
    asked = {body["messages"][0]["content"] for body in lab.server.requests[before:]}
    assert len(asked) == len(FAILING)


def test_a_wrong_key_stops_the_run_at_once(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.Reply({"error": "invalid api key"}, status=401)
    assert run(lab.server, lab.make_data(50), lab.tmp_path / "out", "--concurrency", "2") == 1
    assert len(lab.server.requests) <= 4
    assert "stopped: " in lab.capsys.readouterr().out


def test_a_provider_that_is_down_does_not_cost_hours(lab: Any, no_pause: None) -> None:
    lab.server.answer = lambda body, number: lab.replies.Reply({}, status=503)
    assert run(lab.server, lab.make_data(100), lab.tmp_path / "out", "--concurrency", "2") == 1
    assert "in a row could not be played" in lab.capsys.readouterr().out
    assert len(lab.server.requests) < 100


def test_the_cost_limit_holds_and_a_higher_one_goes_on(lab: Any) -> None:
    prices = lab.tmp_path / "prices.yaml"
    prices.write_text("some-model: [0, 1000]\n")  # 5 tokens written in a call: 0.005 dollars
    lab.server.answer = lambda body, number: lab.replies.chat(lab.script.answer(body))
    data, out = lab.make_data(40), lab.tmp_path / "out"
    limited = ("--prices", str(prices), "--max-tokens", "5", "--concurrency", "6", "--max-cost")
    assert run(lab.server, data, out, *limited, "0.05") == 1
    assert "a higher --max-cost" in lab.capsys.readouterr().out
    assert len(lab.server.requests) == 10  # not one more, although six are asked at a time
    assert run(lab.server, data, out, *limited, "0.05") == 1
    assert len(lab.server.requests) == 10
    assert run(lab.server, data, out, *limited, "10") == 0
    assert len(lab.script.totals(out)[0]) == 40
    calls = sum(len(lab.script.turns(number)) for number in range(40))
    assert len(lab.server.requests) == calls  # no answer was paid for twice
    assert f"${0.005 * calls:.4f}" in lab.capsys.readouterr().out


def test_a_limit_without_a_price_is_refused(lab: Any) -> None:
    assert run(lab.server, lab.make_data(1), lab.tmp_path / "out", "--max-cost", "1") == 2
    assert "--prices" in lab.capsys.readouterr().err


@pytest.mark.parametrize("user", ["", "someone:opensesame@"])
def test_no_key_reaches_the_screen_or_a_file(lab: Any, user: str, no_pause: None) -> None:
    """The server echoes what it was sent: as an error, as a refusal of a long conversation, as an answer."""
    lab.monkeypatch.setenv("HISTOBENCH_API_KEY", "key-of-the-user-1234567890")

    def answer(body: dict[str, Any], number: int) -> Any:
        echo = json.dumps({"you sent": lab.server.headers[number], "to": lab.server.paths[number]})
        if "What is 0 + 1?" in body["messages"][0]["content"]:
            return lab.replies.Reply({"error": echo}, status=503)
        if "What is 1 + 1?" in body["messages"][0]["content"]:
            return lab.replies.Reply({"error": f"context_length_exceeded {echo}"}, status=400)
        return lab.replies.chat(f"{echo} {lab.script.answer(body)}")

    lab.server.answer = answer
    address = lab.server.url.replace("http://", f"http://{user}")
    arguments = ["--agent", f"openai:some-model@{address}", "--tasks", "gsm8k", "--attempts", "2"]
    place = ["--data", str(lab.make_data(3)), "-o", str(lab.tmp_path / "out"), "--cache", "none"]
    assert main(["mint", "run", *arguments, *place]) == 1
    sent = lab.server.headers[0]["authorization"]
    assert sent.startswith("Basic ") if user else sent == "Bearer key-of-the-user-1234567890"
    screen = lab.capsys.readouterr()
    files = [path for path in (lab.tmp_path / "out").rglob("*") if path.is_file()]
    assert {"provider_failures.jsonl", "results.jsonl", "settings.json"} <= {path.name for path in files}
    for text in (screen.out, screen.err, *(path.read_text() for path in files)):
        assert "key-of-the-user" not in text
        assert "opensesame" not in text
