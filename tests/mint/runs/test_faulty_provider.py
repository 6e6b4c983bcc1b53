"""A whole run against a server that fails at every turn: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_sandbox")]
EPISODES = 24
FAULTS = ("429", "500", "hang", "truncated", "empty text", "html", "drop")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histobench.core.http.RetryPolicy.pause", lambda self, failures: 0.01)


def faulty(server: Any, replies: Any, script: Any) -> Counter[str]:
    """Every conversation fails twice, in two ways that depend on it, before it is answered."""
    seen: Counter[str] = Counter()
    used: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(body: dict[str, Any], number: int) -> Any:
        key = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()
        with lock:
            seen[key] += 1
            attempt = seen[key]
        if attempt > 2:
            return replies.chat(script.answer(body))
        fault = FAULTS[(int(key[:8], 16) + 3 * attempt) % len(FAULTS)]
        with lock:
            used[fault] += 1
        return {
            "429": lambda: replies.Reply({}, status=429, headers={"Retry-After": "0"}),
            "500": lambda: replies.Reply({}, status=500),
            "hang": lambda: replies.Reply({}, delay=60),
            "truncated": lambda: replies.Reply(b'{"choices": [{"message": {"content": "<solution>'),
            "empty text": lambda: replies.chat(""),
            "html": lambda: replies.Reply(b"<html></html>", content_type="text/html"),
            "drop": lambda: replies.Reply({"choices": []}, cut=3),
        }[fault]()

    server.answer = answer
    return used


def run(server: Any, data: Path, output: Path, *more: str) -> int:
    agent = f"openai:some-model@{server.url}"
    arguments = ["--agent", agent, "--tasks", "gsm8k", "--data", str(data), "-o", str(output), *more]
    return main(["mint", "run", *arguments, "--attempts", "6"])


@pytest.mark.nightly
def test_faults_change_nothing_in_the_results(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any, script: Any, no_pause: None
) -> None:
    data = make_data(EPISODES)
    server.answer = lambda body, number: replies.chat(script.answer(body))
    assert run(server, data, tmp_path / "clean") == 0
    expected = script.totals(tmp_path / "clean")
    assert len(expected[0]) == EPISODES
    used = faulty(server, replies, script)
    assert run(server, data, tmp_path / "faulty", "--timeout", "4", "--concurrency", "24") == 0
    ids, sums = script.totals(tmp_path / "faulty")
    # An empty answer that was asked for again is no part of the conversation, but it was paid for.
    for name, tokens in (("prompt_tokens", 10), ("completion_tokens", 5), ("total_tokens", 15)):
        sums[name] -= tokens * used["empty text"]
    assert (ids, sums) == expected
    assert set(used) == set(FAULTS)
    assert not list((tmp_path / "faulty").rglob("provider_failures.jsonl"))


def test_a_provider_failure_is_kept_apart_and_made_up_for(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    no_pause: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = make_data(12)

    def answer(body: dict[str, Any], number: int) -> Any:
        broken = "What is 4 + 1?" in body["messages"][0]["content"]
        return replies.Reply({}, status=503) if broken else replies.chat(script.answer(body))

    server.answer = answer
    assert run(server, data, tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "11 of 12 episodes" in said
    assert "not counted as a failure of the model" in said
    assert "1 episodes are missing" in said
    ids, _ = script.totals(tmp_path / "out")
    assert "4" not in ids
    assert len(ids) == 11
    kept = next((tmp_path / "out").rglob("provider_failures.jsonl")).read_text()
    failures = [json.loads(line) for line in kept.splitlines()]
    assert [failure["task_id"] for failure in failures] == [4]
    before = len(server.requests)
    server.answer = lambda body, number: replies.chat(script.answer(body))
    assert run(server, data, tmp_path / "out") == 0
    ids, _ = script.totals(tmp_path / "out")
    assert len(ids) == len(set(ids)) == 12
    asked = server.requests[before:]
    assert all("What is 4 + 1?" in body["messages"][0]["content"] for body in asked)


def test_a_wrong_key_stops_the_run_at_once(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": "invalid api key"}, status=401)
    assert run(server, make_data(50), tmp_path / "out", "--concurrency", "2") == 1
    assert len(server.requests) <= 4
    assert "stopped: " in capsys.readouterr().out


def test_a_provider_that_is_down_does_not_cost_hours(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    no_pause: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answer = lambda body, number: replies.Reply({}, status=503)
    assert run(server, make_data(100), tmp_path / "out", "--concurrency", "2") == 1
    assert "in a row could not be played" in capsys.readouterr().out
    assert len(server.requests) < 100


def test_a_conversation_that_is_too_long_is_the_models_error(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any, script: Any
) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        if len(body["messages"]) > 1:
            return replies.Reply({"error": {"code": "context_length_exceeded"}}, status=400)
        return replies.chat("Hm.")

    server.answer = answer
    assert run(server, make_data(3), tmp_path / "out") == 0
    for line in script.lines(tmp_path / "out"):
        assert (line["state"]["terminate_reason"], line["state"]["success"]) == ("error", False)
        assert "context_length_exceeded" in line["state"]["error"]


def test_the_cost_limit_holds_and_a_higher_one_goes_on(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("some-model: [0, 1000]\n")  # 5 tokens written in a call: 0.005 dollars
    server.answer = lambda body, number: replies.chat(script.answer(body))
    data, out = make_data(40), tmp_path / "out"
    limited = ("--prices", str(prices), "--max-tokens", "5", "--concurrency", "6", "--max-cost")
    assert run(server, data, out, *limited, "0.05") == 1
    assert "a higher --max-cost" in capsys.readouterr().out
    assert len(server.requests) == 10  # not one more, although six are asked at a time
    assert run(server, data, out, *limited, "0.05") == 1
    assert len(server.requests) == 10
    assert run(server, data, out, *limited, "10") == 0
    assert len(script.totals(out)[0]) == 40
    calls = sum(len(script.turns(number)) for number in range(40))
    assert len(server.requests) == calls  # no answer was paid for twice
    assert f"${0.005 * calls:.4f}" in capsys.readouterr().out


def test_a_limit_without_a_price_is_refused(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, make_data(1), tmp_path / "out", "--max-cost", "1") == 2
    assert "--prices" in capsys.readouterr().err


def test_without_a_cache_the_limit_counts_what_the_episodes_of_the_folder_cost(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, replies: Any, script: Any
) -> None:
    server.answer = lambda body, number: replies.chat(script.answer(body))
    prices = tmp_path / "prices.yaml"
    prices.write_text("some-model: [0, 1000000]\n")
    options = ("--prices", str(prices), "--max-tokens", "5", "--concurrency", "1", "--cache", "none")
    options += ("--max-cost", "5")
    assert run(server, make_data(6), tmp_path / "out", *options) == 1
    asked = len(server.requests)
    assert asked == 1  # the first answer costs the whole limit
    assert run(server, make_data(6), tmp_path / "out", *options) == 1
    assert len(server.requests) == asked


@pytest.mark.parametrize("user", ["", "someone:opensesame@"])
def test_no_key_reaches_the_screen_or_a_file(
    user: str,
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    no_pause: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server echoes what it was sent: as an error, as a refusal of a long conversation, as an answer."""
    monkeypatch.setenv("HISTOBENCH_API_KEY", "key-of-the-user-1234567890")

    def answer(body: dict[str, Any], number: int) -> Any:
        echo = json.dumps({"you sent": server.headers[number], "to": server.paths[number]})
        if "What is 0 + 1?" in body["messages"][0]["content"]:
            return replies.Reply({"error": echo}, status=503)
        if "What is 1 + 1?" in body["messages"][0]["content"]:
            return replies.Reply({"error": f"context_length_exceeded {echo}"}, status=400)
        return replies.chat(f"{echo} {script.answer(body)}")

    server.answer = answer
    address = server.url.replace("http://", f"http://{user}")
    arguments = ["--agent", f"openai:some-model@{address}", "--tasks", "gsm8k", "--attempts", "2"]
    place = ["--data", str(make_data(3)), "-o", str(tmp_path / "out"), "--cache", "none"]
    assert main(["mint", "run", *arguments, *place]) == 1
    sent = server.headers[0]["authorization"]
    assert sent.startswith("Basic ") if user else sent == "Bearer key-of-the-user-1234567890"
    screen = capsys.readouterr()
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"provider_failures.jsonl", "results.jsonl", "settings.json"} <= {path.name for path in files}
    for text in (screen.out, screen.err, *(path.read_text() for path in files)):
        assert "key-of-the-user" not in text
        assert "opensesame" not in text
