"""Parts of messages in the formats of the providers, from answers shaped as their documentation shows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from histobench.mint.agents.answer_cache import AnswerCache, request_key
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import Capabilities, ProviderAPI, Question
from histobench.mint.agents.providers.responses import ResponsesAPI
from histobench.mint.messages.parts import (
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    load_image,
)
from histobench.mint.messages.record import message_from_record, message_record

APIS: dict[str, type[ProviderAPI]] = {
    "chat": ChatCompletionsAPI,
    "responses": ResponsesAPI,
    "anthropic": AnthropicAPI,
    "gemini": GeminiAPI,
}
FIXTURES = Path(__file__).parent / "fixtures"
CASES = [
    pytest.param(name, case, id=f"{name}: {title}")
    for name in APIS
    for title, case in json.loads((FIXTURES / f"{name}.json").read_text()).items()
]
SPEC = ToolSpec("look", "Looks.", {"type": "object", "properties": {}, "required": []})


def api(name: str) -> ProviderAPI:
    return APIS[name]("m", "http://host/v1")


def entries(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation in a request of any format."""
    return next(body[name] for name in ("messages", "input", "contents") if name in body)


def sent(name: str, *messages: Message, **sampling: Any) -> list[dict[str, Any]]:
    talk = (Message("user", "Q"), *messages)
    return entries(api(name).request(Question(talk, Sampling(**sampling)), Capabilities()).body)[1:]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_an_answer_is_read_into_parts(name: str, case: dict[str, Any]) -> None:
    completion = api(name).completion(case["answer"])
    assert completion.text == case["text"]
    record = message_record(completion.message)
    kinds = [part["type"] for part in record.get("parts", [{"type": "text"}])]
    assert kinds == case["kinds"]
    calls = [[call.id, call.name, call.arguments] for call in completion.message.calls]
    assert calls == case.get("calls", [])
    if "reasoning" in case:
        thoughts = [part for part in completion.parts if isinstance(part, Reasoning)]
        assert [part.text for part in thoughts] == [case["reasoning"]]
    spent = [completion.usage.prompt_tokens, completion.usage.completion_tokens]
    assert case.get("tokens", spent) == spent
    assert completion.usage.cached_tokens == case.get("cached", 0)
    assert completion.usage.reasoning_tokens == case.get("reasoning_tokens", 0)
    assert case.get("finish", completion.finish) == completion.finish


@pytest.mark.parametrize(("name", "case"), CASES)
def test_an_answer_goes_back_to_its_provider_as_documented(name: str, case: dict[str, Any]) -> None:
    message = api(name).completion(case["answer"]).message
    assert sent(name, message) == case["sent"]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_nothing_is_lost_in_the_record_or_in_the_cache(
    name: str, case: dict[str, Any], tmp_path: Path
) -> None:
    completion = api(name).completion(case["answer"])
    kept = message_from_record(json.loads(json.dumps(message_record(completion.message))))
    assert kept == completion.message
    cache = AnswerCache(tmp_path / "answers.sqlite")
    key = request_key("u", "m", [Message("user", "Q")], Sampling(), 1, [SPEC])
    cache.add(key, completion, 0.1)
    found = cache.find(key)
    assert found is not None
    assert (found.text, found.parts, found.usage) == (completion.text, completion.parts, completion.usage)
    assert found.usage.reasoning_tokens == completion.usage.reasoning_tokens
    cache.close()


@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("source", APIS)
def test_calls_of_one_provider_are_made_anew_for_another(name: str, source: str) -> None:
    case = json.loads((FIXTURES / f"{source}.json").read_text())["tool"]
    message = api(source).completion(case["answer"]).message
    text = json.dumps(sent(name, message))
    assert "print(6 * 7)" in text
    if name != source:
        assert "thoughtSignature" not in text
        assert "fc_1" not in text


@pytest.mark.parametrize("name", APIS)
def test_no_reasoning_goes_back_where_none_may(name: str) -> None:
    for title, case in json.loads((FIXTURES / f"{name}.json").read_text()).items():
        message = api(name).completion(case["answer"]).message
        text = json.dumps(sent(name, message, reasoning_history="none"))
        for words in ("Two and two.", "gAAAAABk", "EqoB", "EmwK", "Run it."):
            assert words not in text, title


def test_all_reasoning_goes_back_where_all_may() -> None:
    case = json.loads((FIXTURES / "chat.json").read_text())["reasoning"]
    message = api("chat").completion(case["answer"]).message
    (entry,) = sent("chat", message, reasoning_history="all")
    assert entry == {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}


def test_an_answer_of_reasoning_alone_leaves_no_empty_message_in_the_request() -> None:
    thought = Message("assistant", "", (Reasoning("Hm."),))
    for name in APIS:
        entry = sent(name, thought, Message("user", "R"))[0]
        assert entry["role"] == "user"


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Pillow.open(io.BytesIO(data)).convert("RGB"))


def pictures(value: Any) -> Iterator[bytes]:
    """Every picture in a request, wherever its format puts it."""
    if isinstance(value, dict):
        for name in ("image_url", "data"):
            inner = value.get(name)
            inner = inner.get("url") if isinstance(inner, dict) else inner
            if isinstance(inner, str):
                head, _, rest = inner.partition(";base64,")
                yield base64.b64decode(rest or head, validate=True)
        for inner in value.values():
            yield from pictures(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pictures(inner)


@pytest.fixture
def picture() -> bytes:
    values = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pillow.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", APIS)
def test_a_server_decodes_the_pixels_that_were_sent(
    name: str, picture: bytes, server: Any, replies: Any
) -> None:
    answers = json.loads((FIXTURES / f"{name}.json").read_text())
    server.answer = lambda body, number: replies.Reply(answers["text"]["answer"])
    image = load_image(picture)
    shown = ToolResult("c1", "look", "a crop", images=(image,))
    talk = [
        Message("system", "Be brief."),
        Message.of("user", [Text("What is this?"), image]),
        Message.of("assistant", [ToolCall("c1", "look", {})]),
        Message.of("user", [shown, Text("You have 4 steps left.")]),
    ]
    endpoint = Endpoint(APIS[name]("m", server.url), Sampling())
    try:
        assert endpoint.ask(talk, functions=[SPEC]).text == "Four."
    finally:
        endpoint.close()
    body = server.requests[0]
    found = [pixels(data) for data in pictures(entries(body))]
    assert len(found) == 2
    for values in found:
        np.testing.assert_array_equal(values, pixels(picture))
    text = json.dumps(body)
    for words in ("Be brief.", "What is this?", "a crop", "You have 4 steps left.", "Looks."):
        assert words in text


def test_the_documented_places_of_results_with_pictures(picture: bytes) -> None:
    image = load_image(picture)
    talk = (
        Message.of("assistant", [ToolCall("c1", "look", {})]),
        Message.of("user", [ToolResult("c1", "look", "a crop", failed=True, images=(image,))]),
    )
    chat = sent("chat", *talk)
    assert chat[1] == {"role": "tool", "tool_call_id": "c1", "content": "a crop"}
    assert [piece["type"] for piece in chat[2]["content"]] == ["text", "image_url"]
    responses = sent("responses", *talk)
    assert responses[1]["type"] == "function_call_output"
    assert [piece["type"] for piece in responses[1]["output"]] == ["input_text", "input_image"]
    (block,) = sent("anthropic", *talk)[1]["content"]
    assert (block["type"], block["tool_use_id"], block["is_error"]) == ("tool_result", "c1", True)
    assert [piece["type"] for piece in block["content"]] == ["text", "image"]
    response, shown = sent("gemini", *talk)[1]["parts"]
    assert response == {"functionResponse": {"name": "look", "response": {"error": "a crop"}}}
    assert shown["inlineData"]["mimeType"] == "image/png"


def test_a_large_picture_is_made_smaller_by_rule() -> None:
    values = np.random.default_rng(0).integers(0, 255, (100, 200, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pillow.fromarray(values).save(buffer, "TIFF")
    image = load_image(buffer.getvalue(), max_side=50)
    expected = Pillow.fromarray(values).resize((50, 25), Pillow.Resampling.LANCZOS)
    np.testing.assert_array_equal(pixels(image.data), np.asarray(expected))
    assert image.media_type == "image/png"
    small = load_image(buffer.getvalue(), max_bytes=4000)
    assert len(small.data) <= 4000
    assert small.media_type == "image/jpeg"
    assert load_image(buffer.getvalue(), max_bytes=4000).data == small.data


def test_reasoning_models_get_no_temperature_and_no_stop_words() -> None:
    sampling = Sampling(stop=("\nTask:",), reasoning_effort="low", max_tokens=900)
    for name in APIS:
        body = api(name).request(Question([Message("user", "Q")], sampling), Capabilities()).body
        assert not {"temperature", "stop", "stop_sequences"} & {*body, *body.get("generationConfig", {})}
    chat = api("chat").request(Question([Message("user", "Q")], sampling), Capabilities()).body
    assert (chat["max_completion_tokens"], chat["reasoning_effort"]) == (900, "low")
    responses = api("responses").request(Question([Message("user", "Q")], sampling), Capabilities()).body
    assert responses["reasoning"] == {"effort": "low"}
    assert responses["include"] == ["reasoning.encrypted_content"]
    assert responses["store"] is False
    claude = api("anthropic").request(Question([Message("user", "Q")], sampling), Capabilities()).body
    assert (claude["thinking"], claude["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    older = Capabilities(frozenset({"adaptive"}))
    claude = api("anthropic").request(Question([Message("user", "Q")], sampling), older).body
    assert claude["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert claude["max_tokens"] == 1924


@pytest.mark.parametrize(
    ("complaint", "name"),
    [
        ("adaptive thinking is not supported on this model", "adaptive"),
        ("Encrypted content is not supported with this model.", "include"),
        ("Unsupported parameter: 'top_p' is not supported with this model.", "top_p"),
        ("Unrecognized request argument supplied: reasoning_effort", "reasoning_effort"),
    ],
)
def test_a_server_that_refuses_a_parameter_is_asked_without_it(complaint: str, name: str) -> None:
    learnt = Capabilities().learnt(complaint)
    assert learnt is not None
    assert learnt.without == {name}


def test_an_answer_of_hidden_reasoning_alone_is_not_asked_for_again(server: Any, replies: Any) -> None:
    answer = replies.chat(None, finish="length")
    payload = json.loads(answer.raw)
    payload["usage"]["completion_tokens_details"] = {"reasoning_tokens": 5}
    server.answer = lambda body, number: replies.Reply(payload)
    endpoint = Endpoint(ChatCompletionsAPI("m", server.url), Sampling())
    try:
        completion = endpoint.ask([Message("user", "Q")])
    finally:
        endpoint.close()
    assert completion.parts == (Reasoning(),)
    assert len(server.requests) == 1


def test_old_entries_of_the_cache_are_found_under_the_old_key() -> None:
    old = "7abf4c303156a9b72bdeed3b2763bed58ddb9c258ed1938f49447bc25322e966"  # of versions before parts
    assert request_key("u", "m", [Message("user", "Q")], Sampling(), 1) == old
