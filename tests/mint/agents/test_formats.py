"""The formats of the providers, without a network; every 200 that cannot be read is a malformed answer."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.client import clean_completion
from histobench.mint.agents.completion import MalformedAnswerError, ProviderError, Sampling
from histobench.mint.agents.factory import EXPERT_STOP_WORDS, agent_stop_words
from histobench.mint.agents.prices import Price
from histobench.mint.agents.providers import provider_format
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import Capabilities, Question
from histobench.mint.agents.providers.responses import ResponsesAPI
from histobench.mint.envs.native_calls import PROPOSAL, read_calls
from histobench.mint.messages.parts import Message, ToolSpec
from histobench.mint.messages.record import message_record

from .conftest import HISTORY, Connect

TALK = (Message("user", "Q"), Message("assistant", "A"), Message("user", "R"), Message("user", "S"))


def test_anthropic_gets_alternating_roles_and_its_own_stop_words() -> None:
    sampling = Sampling(stop=agent_stop_words("anthropic"))
    request = AnthropicAPI("some-claude", "https://host/v1", "secret").request(
        Question(TALK, sampling), Capabilities()
    )
    assert request.url == "https://host/v1/messages"
    assert request.headers == {"anthropic-version": "2023-06-01", "x-api-key": "secret"}
    assert [message["role"] for message in request.body["messages"]] == ["user", "assistant", "user"]
    expected = ["Observation:", "Expert feedback:", "Task:", "---", "\n\nHuman:"]
    assert request.body["stop_sequences"] == expected


def test_gemini_calls_the_assistant_model() -> None:
    request = GeminiAPI("some-gemini", "https://host/v1beta", "secret").request(
        Question(TALK, Sampling()), Capabilities()
    )
    assert request.url == "https://host/v1beta/models/some-gemini:generateContent"
    assert request.headers == {"x-goog-api-key": "secret"}
    assert [content["role"] for content in request.body["contents"]] == ["user", "model", "user", "user"]


@pytest.mark.parametrize(
    ("api", "names"),
    [
        (ChatCompletionsAPI, "max_tokens temperature top_p stop seed"),
        (ResponsesAPI, "max_output_tokens temperature top_p"),
        (AnthropicAPI, "max_tokens temperature top_p stop_sequences"),
        (GeminiAPI, "maxOutputTokens temperature topP stopSequences seed"),
    ],
)
def test_each_format_says_how_the_model_is_to_write(api: Any, names: str) -> None:
    sampling, values = Sampling(0.5, 77, ("x",), top_p=0.9, seed=7), (77, 0.5, 0.9, ["x"], 7)
    body = api("m", "u").request(Question(TALK, sampling), Capabilities()).body
    said = body | body.get("generationConfig", {})
    expected = dict(zip(names.split(), values, strict=False))
    assert {name: value for name, value in said.items() if value in values} == expected


def test_stop_words_are_those_of_the_published_agents() -> None:
    assert agent_stop_words("openai") == ("\nObservation:", "\nExpert feedback:", "\nTask:", "\n---")
    assert agent_stop_words("vllm")[-1] == "\nHuman:"
    assert EXPERT_STOP_WORDS == ("\nObservation:", "\nTask:", "\nAssistant:")


@pytest.mark.parametrize(
    ("written", "sent_back"),
    [
        ('{"code": "print(', {"unreadable": '{"code": "print('}),  # cut off at the limit of tokens
        ("[1]", {"unreadable": "[1]"}),
        ("", {}),
        ('{"code": "1"}', {"code": "1"}),
    ],
)
def test_arguments_in_the_history_are_always_a_json_object(written: str, sent_back: dict[str, Any]) -> None:
    # The server of llama.cpp answers HTTP 500 to a conversation with any other arguments, for ever.
    api = ChatCompletionsAPI("m", "u")
    call = {"id": "c1", "type": "function", "function": {"name": "python", "arguments": written}}
    answer = {
        "finish_reason": "length",
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
    }
    message = api.completion({"choices": [answer]}).message
    body = api.request(Question([Message("user", "?"), message], Sampling()), Capabilities()).body
    (again,) = body["messages"][1]["tool_calls"]
    assert again["id"] == "c1"
    assert json.loads(again["function"]["arguments"]) == sent_back


@pytest.mark.parametrize(
    ("api", "name", "demand"),
    [
        (ChatCompletionsAPI("m", "u"), "tool_choice", "required"),
        (ResponsesAPI("m", "u"), "tool_choice", "required"),
        (AnthropicAPI("m", "u"), "tool_choice", {"type": "any"}),
        (GeminiAPI("m", "u"), "toolConfig", {"functionCallingConfig": {"mode": "ANY"}}),
    ],
)
def test_a_call_is_demanded_in_each_format_where_functions_are_offered(
    api: Any, name: str, demand: Any
) -> None:
    look = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
    must = Sampling(must_call=True)
    assert api.request(Question(TALK, must, [look]), Capabilities()).body[name] == demand
    assert name not in api.request(Question(TALK, must), Capabilities()).body
    assert name not in api.request(Question(TALK, Sampling(), [look]), Capabilities()).body
    refused = Capabilities().learnt("Unsupported parameter: 'tool_choice'")
    assert refused is not None
    assert name not in api.request(Question(TALK, must, [look]), refused).body


def chat(message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}]}


def incomplete(reason: str) -> dict[str, Any]:
    return {"output": [], "status": "incomplete", "incomplete_details": {"reason": reason}}


CUT = {"finishReason": "MAX_TOKENS", "content": {"parts": [{"text": "so"}]}}


@pytest.mark.parametrize(
    ("form", "payload", "ending"),
    [
        (ChatCompletionsAPI, chat({"content": "par"}, "content_filter"), "filtered"),
        (ChatCompletionsAPI, chat({}, "content_filter"), "filtered"),
        (ChatCompletionsAPI, chat({"content": "so mu"}, "length"), "length"),
        (ChatCompletionsAPI, chat({"content": None}, "length"), "length"),
        (ChatCompletionsAPI, chat({"content": None, "refusal": "No."}, "stop"), "refusal"),
        (ResponsesAPI, incomplete("content_filter"), "filtered"),
        (ResponsesAPI, incomplete("max_output_tokens"), "length"),
        (AnthropicAPI, {"content": [], "stop_reason": "refusal"}, "refusal"),
        (AnthropicAPI, {"content": [], "stop_reason": "max_tokens"}, "length"),
        (GeminiAPI, {"promptFeedback": {"blockReason": "SAFETY"}}, "filtered"),
        (GeminiAPI, {"candidates": [{"finishReason": "PROHIBITED_CONTENT"}]}, "filtered"),
        (GeminiAPI, {"candidates": [CUT]}, "length"),
    ],
)
def test_filters_refusals_and_cuts_are_told_apart(form: Any, payload: dict[str, Any], ending: str) -> None:
    completion = form("m", "u").completion(payload)
    assert completion.ending == ending
    assert not (completion.is_empty and ending != "length")  # nothing of this is asked for again


@pytest.mark.parametrize("api", [ChatCompletionsAPI, ResponsesAPI, AnthropicAPI, GeminiAPI])
def test_a_refusal_without_words_is_never_sent_back_as_the_models_turn(api: Any) -> None:
    refused = AnthropicAPI("m", "u").completion({"content": [], "stop_reason": "refusal"})
    assert refused.text == ""
    history = [Message("user", "First."), refused.message, Message("user", "Second.")]
    body = api("m", "http://u").request(Question(history, Sampling()), Capabilities()).body
    sent = json.dumps(body)
    assert "First." in sent
    assert "Second." in sent
    assert "assistant" not in sent
    assert '"model"' not in sent.replace('"model": "m"', "")
    assert "refus" not in sent


FIXTURES = Path(__file__).parent / "fixtures"
WRONG: tuple[Any, ...] = (None, 0, -1, True, "", "x", 1e400, 10**400)
WRONG += ([], [[]], [None], ["x"], [0], {}, {"x": None})


def answers(value: Any) -> Iterator[dict[str, Any]]:
    """The answers among recorded payloads."""
    if isinstance(value, dict):
        if any(name in value for name in ("choices", "output", "candidates", "stop_reason")):
            yield value
        for item in value.values():
            yield from answers(item)
    elif isinstance(value, list):
        for item in value:
            yield from answers(item)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def mutated(payload: Any, path: tuple[Any, ...], value: Any) -> Any:
    payload = copy.deepcopy(payload)
    owner = payload
    for key in path[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return payload


@pytest.mark.slow
@pytest.mark.parametrize("form", ["chat", "responses", "anthropic", "gemini"])
def test_a_mutated_answer_is_read_or_malformed(form: str) -> None:
    recorded = list(answers(json.loads((FIXTURES / f"{form}.json").read_text())))
    assert recorded
    api = provider_format({"chat": "openai"}.get(form, form))("m", "http://host/v1")
    generator, tried, malformed = random.Random(1), 0, 0
    for payload in recorded:
        for path in places(payload):
            for wrong in (..., *generator.sample(WRONG, 8)):
                changed, tried = mutated(payload, path, wrong), tried + 1
                try:
                    completion = clean_completion(api, changed, Sampling())
                except MalformedAnswerError:
                    malformed += 1
                    continue
                message = completion.message  # what a run does with it
                json.dumps(
                    [message_record(message), completion.turn_record(Price(1, 2).of(completion.usage))]
                )
                read_calls(message, [PROPOSAL])
                api.request(Question([*HISTORY, message], Sampling()), Capabilities())
                assert isinstance(completion.text, str)
                assert isinstance(completion.is_empty, bool)
                assert (Price(1, 2).of(api.usage(changed)) or 0.0) >= 0.0
    assert tried > 500
    assert malformed > tried // 20


@pytest.mark.parametrize("depth", [0, 700, 10**6])
def test_nothing_in_an_answer_ends_a_run(server: Any, connect: Connect, replies: Any, depth: int) -> None:
    odd = b'{"content": "4", "odd": ' + b"[" * depth + b"]" * depth + b"}"
    server.answer = lambda body, number: replies.Reply(
        b'{"choices": [{"message": ' + (odd if depth else b"null") + b"}]}"
    )
    with (
        suppress(ProviderError)
        if depth == 700
        else pytest.raises(ProviderError, match="given up after 4 attempts: ")
    ):
        assert connect().ask(HISTORY).text == "4"  # some versions of Python read this nesting
