"""Requests against a real server that fails in every way providers do; no message shows a key."""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.http import RetryPolicy
from histobench.core.redaction import remember_credentials
from histobench.mint.agents.agent import EpisodeLimits
from histobench.mint.agents.agent_spec import PROVIDERS
from histobench.mint.agents.answer_cache import AnswerFiles
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Completion, ProviderError, Sampling, Usage
from histobench.mint.agents.costs import CostTracker
from histobench.mint.agents.factory import EXPERT_STOP_WORDS, Terms, agent_stop_words, open_player
from histobench.mint.agents.prices import Price
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import ProviderAPI
from histobench.mint.agents.providers.responses import ResponsesAPI
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message

from .conftest import FAST, HISTORY, Connect


def test_the_request_is_the_published_one(server: Any, connect: Connect) -> None:
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


@pytest.mark.parametrize("as_expert", [False, True])
def test_an_endpoint_is_opened_on_the_terms_of_the_run(as_expert: bool) -> None:
    terms = Terms(3, FAST, AnswerFiles(Path("x")), {"m": Price(1, 2)}, CostTracker(), {"requests": 60.0})
    terms = replace(terms, episode=EpisodeLimits(tokens=7))
    player: Any = open_player("openai:m@http://127.0.0.1:9/v1", terms, as_expert=as_expert)
    player.close()
    end = player.endpoint
    found = [end._retry, end._cache, end.price, end.costs, end._slots._value, end._limiter._limits]
    assert found == [FAST, terms.cache, Price(1, 2), terms.costs, 3, {"requests": 60.0}]
    usual = (EXPERT_STOP_WORDS, EpisodeLimits(), 1024), (agent_stop_words("openai"), terms.episode, 512)
    assert (end.sampling.stop, player._limits, end.sampling.max_tokens) == usual[not as_expert]


BRACKETS = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
#: Fault -> the body, and what else is special of the reply.
FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "429": ({"error": "slow down"}, {"status": 429, "headers": {"Retry-After": "0"}}),
    "500": ({"error": "oops"}, {"status": 500}),
    "529": ({"error": "overloaded"}, {"status": 529}),
    "hang": ({}, {"delay": 600}),
    "truncated": (b'{"choices": [{"message": {"content": "4', {}),
    "cut off": ({"choices": [{"message": {"content": "4"}}]}, {"cut": 10}),
    "html": (b"<html>Bad gateway</html>", {"content_type": "text/html"}),
    "empty body": (b"", {}),
    "thousands of brackets": (BRACKETS, {}),
    "no choices": ({"choices": []}, {}),
    "null text": ({"choices": [{"message": {"content": None}}]}, {}),
    "error in 200": ({"error": {"code": 503, "message": "upstream"}}, {}),
}


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_passing_failure_is_asked_again_and_booked_unless_the_server_refused(
    fault: str, server: Any, connect: Connect, replies: Any
) -> None:
    bad = replies.Reply(FAULTS[fault][0], **FAULTS[fault][1])
    server.answer = lambda body, number: bad if number < 2 else replies.chat("4")
    costs = CostTracker()
    retry = replace(FAST, answer_timeout=1.0) if fault == "hang" else FAST
    completion = connect(costs=costs, price=Price(1e6, 1e6), retry=retry).ask(HISTORY)
    assert (completion.text, completion.usage) == ("4", Usage(10, 5))
    # Where time-outs are short, a busy machine can cost the good answer its time too.
    assert len(server.requests) == 3 or (fault == "hang" and len(server.requests) == 4)
    most = 0.0 if fault in ("429", "529") else 558.0  # 14 characters, 32 tokens around them, 512 written
    assert costs.spent == 15.0 + (len(server.requests) - 1) * most


def test_a_provider_that_stays_broken_is_given_up_after_the_limit(
    server: Any, connect: Connect, replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": "oops"}, status=500)
    with pytest.raises(ProviderError, match="given up after 4 attempts: HTTP 500") as caught:
        connect().ask(HISTORY)
    assert not caught.value.hopeless
    assert len(server.requests) == 4


@pytest.mark.parametrize("said", ["7", "7000 ms", "a date", "0"])
def test_the_wait_that_the_provider_asks_for_is_kept_by_everyone(
    said: str, server: Any, connect: Connect, replies: Any
) -> None:
    date = formatdate(time.time() + 7, usegmt=True)
    headers = {"Retry-After-Ms": "7000"} if "ms" in said else {"Retry-After": date if "a" in said else said}
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        endpoint._open_at = 0.0

    server.answer = lambda body, number: (
        replies.Reply({}, status=429, headers=headers) if number == 0 else replies.chat("4")
    )
    endpoint = connect(sleep=sleep)
    assert endpoint.ask(HISTORY).text == "4"
    assert len(waits) == 1
    # Less what has passed since the answer; its own pauses are 0.005 to 0.01.
    assert (0.005 <= waits[0] <= 0.01) if said == "0" else (1 < waits[0] <= 7.0)


def test_a_wait_of_hours_is_not_waited(server: Any, connect: Connect, replies: Any) -> None:
    server.answer = lambda body, number: replies.Reply({}, status=429, headers={"Retry-After": "7200"})
    with pytest.raises(ProviderError, match="7200 s"):
        connect().ask(HISTORY)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_wrong_key_or_model_is_hopeless_at_once(
    status: int, server: Any, connect: Connect, replies: Any
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
    message: str, server: Any, connect: Connect, replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"error": {"message": message}}, status=400)
    with pytest.raises(RequestRefusedError):
        connect().ask(HISTORY)
    assert len(server.requests) == 1


def test_empty_text_that_persists_is_what_the_model_says(server: Any, connect: Connect, replies: Any) -> None:
    server.answer = lambda body, number: replies.chat("")
    completion = connect().ask(HISTORY)
    assert completion.text == ""
    assert len(server.requests) == 3


def test_half_a_surrogate_pair_is_neither_taken_over_nor_sent(
    server: Any, connect: Connect, replies: Any
) -> None:
    server.answer = lambda body, number: replies.chat("<solution>\ud800 \U0001f600</solution>")
    endpoint = connect()
    assert endpoint.ask(HISTORY).text == "<solution>\ufffd \U0001f600</solution>"
    endpoint.ask((*HISTORY, Message("assistant", "\udfff")))
    assert server.requests[1]["messages"][1]["content"] == "\ufffd"


def test_what_json_does_not_know_can_be_sent_back(server: Any, connect: Connect, replies: Any) -> None:
    call = {"id": "1", "type": float("nan"), "function": {"name": "f", "arguments": "{}"}}
    choice = {"message": {"content": "4", "tool_calls": [call]}, "logprobs": float("-inf")}
    server.answer = lambda body, number: replies.Reply({"choices": [choice]})
    endpoint = connect()
    said = endpoint.ask(HISTORY)
    assert endpoint.ask((*HISTORY, Message("assistant", said.text, said.parts))).text == "4"


def test_parameters_that_the_model_refuses_are_left_out(server: Any, connect: Connect, replies: Any) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        for name in ("max_tokens", "stop", "temperature"):
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                return replies.Reply({"error": {"message": message}}, status=400)
        return replies.chat("4\nTask: go on")

    server.answer = answer
    endpoint = connect()
    assert endpoint.ask(HISTORY).text == "4"  # cut here, since the server does not
    assert set(server.requests[-1]) == {"model", "messages", "max_completion_tokens"}
    endpoint.ask(HISTORY)
    assert len(server.requests) == 5  # learnt once


def test_neighbouring_messages_of_one_role_are_joined_for_servers_that_insist(
    server: Any, connect: Connect, replies: Any
) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        roles = [message["role"] for message in body["messages"]]
        if any(first == second for first, second in itertools.pairwise(roles)):
            return replies.Reply({"error": "Conversation roles must alternate user/assistant"}, status=400)
        return replies.chat("4")

    server.answer = answer
    assert connect().ask((*HISTORY, Message("user", "Well?"))).text == "4"
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "What is 2 + 2?\nWell?"}]


def test_no_more_requests_at_a_time_than_allowed(server: Any, connect: Connect, replies: Any) -> None:
    server.answer = lambda body, number: replies.Reply(replies.chat("4").raw, delay=0.05)
    endpoint = connect(concurrency=3)
    threads = [threading.Thread(target=endpoint.ask, args=(HISTORY,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(server.requests) == 12
    assert server.most_at_once <= 3


def test_stopping_breaks_off_what_is_under_way(server: Any, connect: Connect, replies: Any) -> None:
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


def test_processes_share_what_was_answered(tmp_path: Path) -> None:
    AnswerFiles(tmp_path).add("ab12", Completion("yes", Usage(1, 2), "stop"), 0.5)
    found = AnswerFiles(tmp_path).find("ab12")
    assert found is not None
    assert (found.text, found.cached) == ("yes", True)
    assert AnswerFiles(tmp_path).find("cd34") is None


@pytest.mark.parametrize("status", [400, 401, 429, 200])
def test_a_server_that_echoes_the_request_gives_no_key_away(
    status: int, server: Any, connect: Connect, replies: Any
) -> None:
    endpoint = connect(key="a-key-of-some-length-12345")
    server.answer = lambda body, number: replies.Reply(
        {"error": {"message": f"{'x' * 250} {json.dumps(server.headers[number])}"}}, status=status
    )
    with pytest.raises(ProviderError) as caught:
        endpoint.ask(HISTORY)
    assert server.headers[0]["authorization"] == "Bearer a-key-of-some-length-12345"
    assert "a-key" not in str(caught.value)


def test_a_key_in_what_a_model_says_is_hidden(server: Any, connect: Connect, replies: Any) -> None:
    endpoint = connect(key="a-key-of-some-length-12345")
    server.answer = lambda body, number: replies.chat(f"You are {server.headers[number]['authorization']}.")
    assert endpoint.ask(HISTORY).text == "You are Bearer [hidden]."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "path"),
    [
        (ChatCompletionsAPI, "chat/completions"),
        (ResponsesAPI, "responses"),
        (AnthropicAPI, "messages"),
        (GeminiAPI, "models/some-model:generateContent"),
    ],
)
@pytest.mark.parametrize("ending", ["", "/"])
def test_parameters_of_an_address_come_behind_the_path_and_are_sent(
    server: Any, replies: Any, api: type[ProviderAPI], path: str, ending: str
) -> None:
    address = f"{server.url}{ending}?api-version=2024-02-01&sig=a%2Fb-signed#part"
    remember_credentials(address)
    server.answer = lambda body, number: replies.Reply({"error": f"no {server.paths[number]}"}, status=404)
    endpoint = Endpoint(api("some-model", address, "key"), Sampling(), retry=replace(FAST, attempts=1))
    with pytest.raises(ProviderError) as caught:
        endpoint.ask(HISTORY)
    endpoint.close()
    assert "api-version=2024-02-01&sig=[hidden]" in str(caught.value)
    assert "a%2Fb-signed" not in str(caught.value)
    assert server.paths == [f"/v1/{path}?api-version=2024-02-01&sig=a%2Fb-signed"]
