"""Requests against a real server that fails in every way providers do."""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.http import RetryPolicy
from histobench.mint.agents.agent_spec import PROVIDERS
from histobench.mint.agents.answer_cache import AnswerCache, AnswerFiles
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Completion, ProviderError, Usage
from histobench.mint.agents.costs import CostTracker
from histobench.mint.agents.factory import Terms, open_player
from histobench.mint.agents.prices import Price
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message

from .conftest import FAST, HISTORY


def test_the_request_is_the_published_one(server: Any, connect: Callable[..., Endpoint]) -> None:
    assert connect().ask(HISTORY).text == "hello"
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer key"
    assert server.requests[0] == {
        "model": "some-model",
        "messages": [{"role": "user", "content": "What is 2 + 2?"}],
        "temperature": 0.0,
        "max_tokens": 512,
        "stop": ["\nTask:"],
    }


def test_a_provider_is_one_entry_that_may_come_from_outside(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "mine", (server.url, ("MY_PROVIDERS_KEY",)))
    with pytest.raises(HistobenchError, match="mine:some-model needs a key: set MY_PROVIDERS_KEY"):
        open_player("mine:some-model", Terms())
    monkeypatch.setenv("MY_PROVIDERS_KEY", "a-key-of-mine")
    player = open_player("mine:some-model", Terms())
    try:
        assert player.endpoint.ask(HISTORY).text == "hello"
    finally:
        player.close()
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer a-key-of-mine"
    assert server.requests[0]["model"] == "some-model"


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "429",
        "500",
        "529",
        "hang",
        "truncated",
        "cut off",
        "html",
        "empty body",
        "thousands of brackets",
        "no choices",
        "null text",
        "error in 200",
    ],
)
def test_a_passing_failure_is_asked_again_and_booked_unless_the_server_refused(
    fault: str, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    failures = {
        "429": lambda: replies.Reply({"error": "slow down"}, status=429, headers={"Retry-After": "0"}),
        "500": lambda: replies.Reply({"error": "oops"}, status=500),
        "529": lambda: replies.Reply({"error": "overloaded"}, status=529),
        "hang": lambda: replies.Reply({}, delay=600),
        "truncated": lambda: replies.Reply(b'{"choices": [{"message": {"content": "4'),
        "cut off": lambda: replies.Reply({"choices": [{"message": {"content": "4"}}]}, cut=10),
        "html": lambda: replies.Reply(b"<html>Bad gateway</html>", content_type="text/html"),
        "empty body": lambda: replies.Reply(b""),
        "thousands of brackets": lambda: replies.Reply(
            b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        ),
        "no choices": lambda: replies.Reply({"choices": []}),
        "null text": lambda: replies.Reply({"choices": [{"message": {"content": None}}]}),
        "error in 200": lambda: replies.Reply({"error": {"code": 503, "message": "upstream"}}),
    }
    server.answer = lambda body, number: failures[fault]() if number < 2 else replies.chat("4")
    costs = CostTracker()
    retry = replace(FAST, answer_timeout=1.0) if fault == "hang" else FAST
    completion = connect(costs=costs, price=Price(1e6, 1e6), retry=retry).ask(HISTORY)
    assert (completion.text, completion.usage) == ("4", Usage(10, 5))
    # Where time-outs are short, a busy machine can cost the good answer its time too.
    assert len(server.requests) == 3 or (fault == "hang" and len(server.requests) == 4)
    most = 0.0 if fault in ("429", "529") else 558.0  # 14 characters, 32 tokens around them, 512 written
    assert (costs.calls, costs.usage) == (1, Usage(10, 5))
    assert costs.spent == 15.0 + (len(server.requests) - 1) * most


def test_a_provider_that_stays_broken_is_given_up_after_the_limit(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": "oops"}, status=500)
    with pytest.raises(ProviderError, match="given up after 4 attempts: HTTP 500") as caught:
        connect().ask(HISTORY)
    assert not caught.value.hopeless
    assert len(server.requests) == 4


def test_the_wait_that_the_provider_asks_for_is_kept_by_everyone(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        endpoint._open_at = 0.0

    server.answer = lambda body, number: (
        replies.Reply({}, status=429, headers={"Retry-After": "7"}) if number == 0 else replies.chat("4")
    )
    endpoint = connect(sleep=sleep)
    assert endpoint.ask(HISTORY).text == "4"
    assert len(waits) == 1
    assert 1 < waits[0] <= 7.0  # less what has passed since the answer; its own pauses are 0.02


def test_a_wait_of_hours_is_not_waited(server: Any, connect: Callable[..., Endpoint], replies: Any) -> None:
    server.answer = lambda body, number: replies.Reply({}, status=429, headers={"Retry-After": "7200"})
    with pytest.raises(ProviderError, match="7200 s"):
        connect().ask(HISTORY)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_wrong_key_or_model_is_hopeless_at_once(
    status: int, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": "no"}, status=status)
    with pytest.raises(ProviderError) as caught:
        connect().ask(HISTORY)
    assert caught.value.hopeless
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4097 tokens",
        "request (11433 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
    ],
)
def test_a_conversation_that_is_too_long_is_refused_not_retried(
    message: str, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": {"message": message}}, status=400)
    with pytest.raises(RequestRefusedError):
        connect().ask(HISTORY)
    assert len(server.requests) == 1


def test_empty_text_that_persists_is_what_the_model_says(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.chat("")
    completion = connect().ask(HISTORY)
    assert completion.text == ""
    assert len(server.requests) == 3


def test_empty_answers_are_paid_for_though_no_part_of_the_conversation(
    tmp_path: Path, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.chat("" if number < 2 else "4")
    costs, cache = CostTracker(), AnswerCache(tmp_path / "answers.sqlite")
    endpoint = connect(costs=costs, cache=cache, price=Price(1e6, 1e6))
    completion = endpoint.ask(HISTORY)
    assert (completion.text, completion.usage) == ("4", Usage(10, 5))
    assert (endpoint.cost(completion), costs.spent, cache.spent()) == (45.0, 45.0, 45.0)
    cache.close()


def test_half_a_surrogate_pair_is_neither_taken_over_nor_sent(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.chat("<solution>\ud800 \U0001f600</solution>")
    endpoint = connect()
    assert endpoint.ask(HISTORY).text == "<solution>\ufffd \U0001f600</solution>"
    endpoint.ask((*HISTORY, Message("assistant", "\udfff")))
    assert server.requests[1]["messages"][1]["content"] == "\ufffd"


def test_parameters_that_the_model_refuses_are_left_out(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        for name in ("max_tokens", "stop", "temperature"):
            if name in body:
                return replies.Reply(
                    {
                        "error": {
                            "message": f"Unsupported parameter: '{name}' is not supported with this model."
                        }
                    },
                    status=400,
                )
        return replies.chat("4\nTask: go on")

    server.answer = answer
    endpoint = connect()
    assert endpoint.ask(HISTORY).text == "4"  # cut here, since the server does not
    assert set(server.requests[-1]) == {"model", "messages", "max_completion_tokens"}
    endpoint.ask(HISTORY)
    assert len(server.requests) == 5  # learnt once


def test_neighbouring_messages_of_one_role_are_joined_for_servers_that_insist(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        roles = [message["role"] for message in body["messages"]]
        if any(first == second for first, second in itertools.pairwise(roles)):
            return replies.Reply({"error": "Conversation roles must alternate user/assistant"}, status=400)
        return replies.chat("4")

    server.answer = answer
    assert connect().ask((*HISTORY, Message("user", "Well?"))).text == "4"
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "What is 2 + 2?\nWell?"}]


def test_no_more_requests_at_a_time_than_allowed(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply(replies.chat("4").raw, delay=0.05)
    endpoint = connect(concurrency=3)
    threads = [threading.Thread(target=endpoint.ask, args=(HISTORY,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(server.requests) == 12
    assert server.most_at_once <= 3


def test_stopping_breaks_off_what_is_under_way(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    asked = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Any:
        asked.set()
        return replies.Reply({}, delay=600)

    server.answer = answer
    endpoint = connect(retry=RetryPolicy())
    errors: list[Exception] = []

    def ask() -> None:
        try:
            endpoint.ask(HISTORY)
        except ProviderError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(120)
    endpoint.stop()
    thread.join(120)
    assert len(errors) == 1


def test_an_answer_without_end_is_refused_in_one_line(
    server: Any, connect: Callable[..., Endpoint], replies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("histobench.mint.agents.client.MAX_ANSWER_BYTES", 1 << 20)
    packed = gzip.compress(b"[" + b" " * (3 << 20) + b"]")
    for body, headers in ((b" " * (2 << 20), {}), (packed, {"Content-Encoding": "gzip"})):
        server.answer = lambda _, number, body=body, headers=headers: replies.Reply(body, headers=headers)
        with pytest.raises(ProviderError, match="sent more than 1 MB for one answer") as caught:
            connect().ask(HISTORY)
        assert "\n" not in str(caught.value)
    assert len(server.requests) == 2  # asking again would fetch it all again


def test_processes_that_share_answers_ask_each_request_once(tmp_path: Path) -> None:
    """Each thread has a cache of its own, as each process has."""
    asked: list[str] = []

    def ask(key: str) -> str:
        cache = AnswerFiles(tmp_path)
        with cache.asking(key):
            known = cache.find(key)
            if known is None:
                asked.append(key)
                time.sleep(0.05)
                known = Completion("yes", Usage(1, 2), "stop")
                cache.add(key, known, 0.5)
        return known.text

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, ["ab12", "cd34"] * 8)) == {"yes"}
    assert sorted(asked) == ["ab12", "cd34"]
    assert AnswerFiles(tmp_path).spent() == 1.0
    found = AnswerFiles(tmp_path).find("ab12")
    assert found is not None
    assert found.cached
