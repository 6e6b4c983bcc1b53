"""Prices, limits of rates, several servers, batches."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.core.http import RetryPolicy, retry_after
from histobench.mint.agents.batch import HostedCarrier
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.hosts import Hosts
from histobench.mint.agents.prices import TABLE, Price, find_price, read_prices
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.rate_limits import RateLimiter, RateLimits
from histobench.mint.messages.parts import Message
from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.uncertainty import pass_at, pass_hat, tries_rows

ASK = [Message("user", "Q")]


def test_every_shipped_price_has_a_source_and_a_date() -> None:
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    for source in table["sources"].values():
        assert source["url"].startswith("https://")
        assert source["read"].year >= 2026
    assert {entry["source"] for entry in table["models"].values()} <= table["sources"].keys()
    assert read_prices().keys() == table["models"].keys()


def test_cached_and_reasoning_tokens_have_prices_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("m: {read: 2, written: 10, cached: 0.5, cache_write: 3, reasoning: 20}\nplain: [1, 2]\n")
    prices = read_prices(path)
    usage = Usage(1000, 500, cached_tokens=300, cache_writes=100, reasoning_tokens=200)
    expected = (600 * 2 + 300 * 0.5 + 100 * 3 + 300 * 10 + 200 * 20) / 1e6
    assert prices["m"].of(usage) == pytest.approx(expected)
    assert prices["plain"].of(usage) == pytest.approx((1000 * 1 + 500 * 2) / 1e6)
    path.write_text("m: {read: 2}\n")
    with pytest.raises(HistobenchError, match="the price of m"):
        read_prices(path)


@pytest.mark.parametrize(
    ("model", "known"),
    [("claude-opus-4-20250514", True), ("claude-opus-4-9", False), ("claude-opus-4-5-20251101", True)],
)
def test_a_later_version_is_another_model(model: str, known: bool) -> None:
    assert (
        find_price(model, {"claude-opus-4": Price(1, 1), "claude-opus-4-5": Price(2, 2)}) is not None
    ) is known


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_of_requests_is_kept_over_a_minute() -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimits(requests=6), clock=clock)
    assert [limiter.wait(1) for _ in range(6)] == [0.0] * 6
    assert limiter.wait(1) == pytest.approx(10.0)
    clock.now += 10
    assert limiter.wait(1) == 0.0


def test_a_limit_of_tokens_is_corrected_by_what_an_answer_took() -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimits(tokens=600), clock=clock)
    assert limiter.wait(600) == 0.0
    limiter.settle(600, 100)  # 500 are left
    assert limiter.wait(500) == 0.0
    assert limiter.wait(60) == pytest.approx(6.0)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"},
    ],
)
def test_what_the_headers_say_is_obeyed(headers: dict[str, str]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    limiter.hear({"x-ratelimit-remaining-requests": "nonsense", "x-ratelimit-reset-requests": "?"})
    assert limiter.wait(10) == 0.0
    limiter.hear(headers)
    assert limiter.wait(10) == pytest.approx(60.0)
    clock.now += 61
    assert limiter.wait(10) == 0.0


@pytest.mark.parametrize("wrong_by", [-3600.0, 0.0, 3600.0])
def test_a_date_of_the_server_is_read_by_its_own_clock(
    monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    """A clock that was set back, or is wrong, neither makes us wait an hour nor ask at once."""
    true = 1794744000.0
    monkeypatch.setattr("time.time", lambda: true + wrong_by)
    said = {"date": "Sun, 15 Nov 2026 12:00:00 GMT", "retry-after": "Sun, 15 Nov 2026 12:00:20 GMT"}
    assert retry_after(said) == pytest.approx(20.0)
    limiter = RateLimiter(clock=Clock())
    prefix = "anthropic-ratelimit-requests"
    reset = {f"{prefix}-remaining": "0", f"{prefix}-reset": "2026-11-15T12:00:30Z"}
    limiter.hear(reset | {"date": said["date"]})
    assert limiter.wait(1) == pytest.approx(30.0)


@pytest.mark.parametrize("reset", ["inf", "1e300", "99999999h", "2999-01-01T00:00:00Z"])
def test_no_server_makes_us_wait_for_ever(reset: str) -> None:
    limiter = RateLimiter(clock=Clock())
    limiter.hear({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset})
    assert limiter.wait(1) == 600.0


def test_servers_take_turns_or_the_idle_one_is_asked() -> None:
    apis = [ChatCompletionsAPI("m", f"http://host{n}/v1") for n in range(3)]
    turns = Hosts(apis, balance="round-robin")
    order = []
    for _ in range(6):
        host = turns.pick()
        host.asked += 1
        host.busy += 1
        order.append(host.place[-4])
    assert order == ["0", "1", "2"] * 2
    idle = Hosts(apis)
    first, second = idle.pick(), None
    first.busy += 2
    second = idle.pick()
    second.busy += 1
    assert {first.place, second.place} == {"http://host0/v1", "http://host1/v1"}
    assert idle.pick().place == "http://host2/v1"


@pytest.mark.slow
def test_a_server_that_is_down_is_passed_over(server: Any, replies: Any) -> None:
    endpoint = Endpoint(
        ChatCompletionsAPI("m", "http://127.0.0.1:9/v1"),
        Sampling(),
        others=[ChatCompletionsAPI("m", server.url)],
        retry=RetryPolicy(attempts=3, first_pause=5.0),
    )
    try:
        assert endpoint.ask(ASK).text == "hello"
        assert endpoint.ask(ASK).text == "hello"
    finally:
        endpoint.close()


PROGRAM = """
import json, re, sys
with open(sys.argv[1]) as requests, open(sys.argv[2], "w") as answers:
    for line in requests:
        request = json.loads(line)
        talk = request["body"]["messages"]
        number = int(re.findall(r"What is (\\d+) \\+ 1", talk[0]["content"])[-1])
        said = sum(message["role"] == "assistant" for message in talk)
        text = "<solution>-7</solution>" if not said and number % 2 else f"<solution>{number + 1}</solution>"
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        answer = {"custom_id": request["custom_id"], "response": {"status_code": 200, "body": body}}
        answers.write(json.dumps(answer) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_sandbox")
def test_a_batch_holds_the_turns_of_all_running_episodes(
    script: Any, make_data: Callable[[int], Path], tmp_path: Path
) -> None:
    program = tmp_path / "model.py"
    program.write_text(PROGRAM)
    output = tmp_path / "out"
    command = f"{sys.executable} {program} {{requests}} {{answers}}"
    arguments = [
        "--tasks",
        "gsm8k",
        "--data",
        str(make_data(6)),
        "--output",
        str(output),
        "--concurrency",
        "6",
    ]
    assert main(["mint", "run", "--agent", "vllm:m@http://x/v1", "--batch", command, *arguments]) == 0
    _, sums = script.totals(output)
    assert (sums["success"], sums["propose_solution"]) == (6, 9)
    files = sorted((output / "batches").glob("*.requests.jsonl"))
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    assert [len(batch) for batch in lines] == [6, 3]
    assert lines[0][0]["method"] == "POST"
    assert lines[0][0]["url"] == "/v1/chat/completions"


@pytest.mark.slow
@pytest.mark.usefixtures("one_sandbox")
def test_a_batch_command_that_fails_is_no_failure_of_the_model(
    make_data: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = ["--tasks", "gsm8k", "--data", str(make_data(2)), "--output", str(output)]
    command = f"{sys.executable} -c raise {{requests}} {{answers}}"
    assert main(["mint", "run", "--agent", "vllm:m@http://x/v1", "--batch", command, *arguments]) == 1
    assert "wrote no answers" in capsys.readouterr().out


def test_the_hosted_interface_gets_a_file_and_is_waited_for(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes, str | None]] = []
    polls = iter(["in_progress", "completed"])
    answer = b'{"custom_id": "request-0", "response": {"status_code": 200, "body": {}}}'

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, body, self.headers["Authorization"]))
            self._send({"id": "file-1"} if self.path == "/v1/files" else {"id": "b1", "status": "validating"})

        def do_GET(self) -> None:
            if self.path == "/v1/batches/b1":
                self._send({"id": "b1", "status": next(polls), "output_file_id": "out-1"})
            else:
                assert self.path == "/v1/files/out-1/content"
                self._send(answer)

        def _send(self, value: Any) -> None:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    hosted = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=hosted.serve_forever, args=(0.05,), daemon=True).start()
    api = ChatCompletionsAPI("m", f"http://127.0.0.1:{hosted.server_address[1]}/v1", "secret-key")
    requests = tmp_path / "batch-0001.requests.jsonl"
    requests.write_text('{"custom_id": "request-0", "url": "/v1/chat/completions"}\n')
    try:
        HostedCarrier(api, poll_s=0.0).carry(requests, tmp_path / "answers.jsonl")
    finally:
        hosted.shutdown()
        hosted.server_close()
    assert (tmp_path / "answers.jsonl").read_bytes() == answer + b"\n"
    (upload, body, key), (path, order, _) = seen
    assert (upload, path, key) == ("/v1/files", "/v1/batches", "Bearer secret-key")
    assert requests.read_bytes() in body
    assert b'name="purpose"' in body
    assert json.loads(order) == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }


def outcomes(results: list[list[bool]]) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome("m", "None", "None", 5, "gsm8k", str(task), success)
        for task, tries in enumerate(results)
        for success in tries
    ]


def test_pass_at_k_and_pass_hat_k_are_means_over_all_choices_of_tries() -> None:
    results = [[True, False, True, False], [False] * 4, [True, True, True, False], [True] * 4]
    played = outcomes(results)
    for tries in range(1, 5):
        choices = [list(combinations(task, tries)) for task in results]
        at = sum(sum(map(any, task)) / len(task) for task in choices) / len(results)
        hat = sum(sum(map(all, task)) / len(task) for task in choices) / len(results)
        assert pass_at(played, tries) == pytest.approx(at)
        assert pass_hat(played, tries) == pytest.approx(hat)
    (row,) = tries_rows(played)
    assert (row.tasks, len(row.pass_at)) == (4, 4)
    assert pass_at(played, 5) is None
