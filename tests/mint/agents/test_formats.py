"""The formats of the providers, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from histobench.mint.agents.completion import MalformedAnswerError, Sampling, Usage
from histobench.mint.agents.factory import agent_stop_words, expert_stop_words
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.base import Capabilities
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.messages.parts import Message

TALK = (Message("user", "Q"), Message("assistant", "A"), Message("user", "R"), Message("user", "S"))


def test_anthropic_gets_alternating_roles_and_its_own_stop_words() -> None:
    sampling = Sampling(stop=agent_stop_words("anthropic"))
    request = AnthropicAPI("some-claude", "https://host/v1", "secret").request(TALK, sampling, Capabilities())
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
        TALK, Sampling(), Capabilities()
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


@pytest.mark.parametrize(
    ("api", "payload"),
    [
        (ChatCompletionsAPI("m", "u"), {}),
        (ChatCompletionsAPI("m", "u"), {"choices": [{"message": {"content": ["parts"]}}]}),
        (
            ChatCompletionsAPI("m", "u"),
            {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]},
        ),
        (AnthropicAPI("m", "u"), {"type": "error", "error": {}}),
        (AnthropicAPI("m", "u"), {"content": [{"text": "no type"}]}),
        (GeminiAPI("m", "u"), {"promptFeedback": {"blockReason": "SAFETY"}}),
        (GeminiAPI("m", "u"), {"candidates": [{"finishReason": "SAFETY"}]}),
        (GeminiAPI("m", "u"), {"candidates": ["text"]}),
    ],
)
def test_what_is_not_an_answer_is_not_taken_for_the_models_text(api: Any, payload: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswerError):
        api.completion(payload)


def test_an_answer_without_token_counts_has_unknown_usage() -> None:
    payload = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}
    assert not ChatCompletionsAPI("m", "u").completion(payload).usage.known


@pytest.mark.parametrize("count", [float("inf"), float("nan"), "many", None, -1])
def test_counts_that_are_no_number_of_tokens_are_unknown_usage(count: Any) -> None:
    openai = {
        "choices": [{"message": {"content": "4"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": count},
    }
    anthropic = {"content": [{"type": "text", "text": "4"}], "usage": {"output_tokens": count}}
    gemini = {
        "candidates": [{"content": {"parts": [{"text": "4"}]}}],
        "usageMetadata": {"promptTokenCount": count},
    }
    for kind, payload in ((ChatCompletionsAPI, openai), (AnthropicAPI, anthropic), (GeminiAPI, gemini)):
        completion = kind("m", "u").completion(payload)
        assert (completion.text, completion.usage) == ("4", Usage(known=False))


def test_a_model_that_only_thought_said_nothing() -> None:
    payload = {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
    assert ChatCompletionsAPI("m", "u").completion(payload).text == ""


def test_stop_words_are_those_of_the_published_agents() -> None:
    assert agent_stop_words("openai") == ("\nObservation:", "\nExpert feedback:", "\nTask:", "\n---")
    assert agent_stop_words("vllm")[-1] == "\nHuman:"
    assert expert_stop_words() == ("\nObservation:", "\nTask:", "\nAssistant:")
