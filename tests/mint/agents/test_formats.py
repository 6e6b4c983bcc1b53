"""The formats of the providers, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.factory import EXPERT_STOP_WORDS, agent_stop_words
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import Capabilities, Question
from histobench.mint.agents.providers.responses import ResponsesAPI
from histobench.mint.messages.parts import Message, ToolSpec

TALK = (Message("user", "Q"), Message("assistant", "A"), Message("user", "R"), Message("user", "S"))


def test_anthropic_gets_alternating_roles_and_its_own_stop_words() -> None:
    sampling = Sampling(stop=agent_stop_words("anthropic"))
    request = AnthropicAPI("some-claude", "https://host/v1", "secret").request(
        Question(TALK, sampling), Capabilities()
    )
    assert request.url == "https://host/v1/messages"
    assert request.headers == {"anthropic-version": "2023-06-01", "x-api-key": "secret"}
    assert [message["role"] for message in request.body["messages"]] == ["user", "assistant", "user"]
    assert request.body["stop_sequences"] == [
        "Observation:",
        "Expert feedback:",
        "Task:",
        "---",
        "\n\nHuman:",
    ]


def test_anthropic_text_and_tokens_are_read() -> None:
    completion = AnthropicAPI("m", "u").completion(
        {
            "type": "message",
            "content": [{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "4"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 2},
        }
    )
    assert (completion.text, completion.usage, completion.finish) == ("4", Usage(10, 2), "end_turn")


def test_gemini_calls_the_assistant_model() -> None:
    request = GeminiAPI("some-gemini", "https://host/v1beta", "secret").request(
        Question(TALK, Sampling()), Capabilities()
    )
    assert request.url == "https://host/v1beta/models/some-gemini:generateContent"
    assert request.headers == {"x-goog-api-key": "secret"}
    assert [content["role"] for content in request.body["contents"]] == ["user", "model", "user", "user"]
    assert request.body["generationConfig"] == {"maxOutputTokens": 512, "temperature": 0.0}


def test_gemini_text_without_thoughts_is_read_and_thoughts_are_paid_for() -> None:
    completion = GeminiAPI("m", "u").completion(
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "hm", "thought": True}, {"text": "4"}]},
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1, "thoughtsTokenCount": 4},
        }
    )
    assert (completion.text, completion.usage) == ("4", Usage(9, 5))


def test_a_model_that_only_thought_said_nothing() -> None:
    payload = {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
    assert ChatCompletionsAPI("m", "u").completion(payload).text == ""


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


@pytest.mark.parametrize(
    ("api", "payload", "ending"),
    [
        (
            ChatCompletionsAPI("m", "u"),
            {"choices": [{"message": {"content": "par"}, "finish_reason": "content_filter"}]},
            "filtered",
        ),
        (
            ChatCompletionsAPI("m", "u"),
            {"choices": [{"message": {}, "finish_reason": "content_filter"}]},
            "filtered",
        ),
        (
            ChatCompletionsAPI("m", "u"),
            {"choices": [{"message": {"content": "so mu"}, "finish_reason": "length"}]},
            "length",
        ),
        (
            ChatCompletionsAPI("m", "u"),
            {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]},
            "refusal",
        ),
        (
            ResponsesAPI("m", "u"),
            {"output": [], "status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "filtered",
        ),
        (
            ResponsesAPI("m", "u"),
            {"output": [], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "length",
        ),
        (AnthropicAPI("m", "u"), {"content": [], "stop_reason": "refusal"}, "refusal"),
        (
            AnthropicAPI("m", "u"),
            {"content": [{"type": "text", "text": "so mu"}], "stop_reason": "max_tokens"},
            "length",
        ),
        (GeminiAPI("m", "u"), {"promptFeedback": {"blockReason": "SAFETY"}}, "filtered"),
        (GeminiAPI("m", "u"), {"candidates": [{"finishReason": "PROHIBITED_CONTENT"}]}, "filtered"),
        (
            GeminiAPI("m", "u"),
            {"candidates": [{"finishReason": "MAX_TOKENS", "content": {"parts": [{"text": "so"}]}}]},
            "length",
        ),
    ],
)
def test_filters_refusals_and_cuts_are_told_apart(api: Any, payload: dict[str, Any], ending: str) -> None:
    completion = api.completion(payload)
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
