"""Keys and parameters of addresses reach the server, and no message or answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from histobench.core.redaction import remember_credentials
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import ProviderError, Sampling
from histobench.mint.agents.providers.anthropic import AnthropicAPI
from histobench.mint.agents.providers.gemini import GeminiAPI
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import ProviderAPI
from histobench.mint.agents.providers.responses import ResponsesAPI

from .conftest import FAST, HISTORY


@pytest.mark.parametrize("status", [400, 401, 429, 200])
def test_a_server_that_echoes_the_request_gives_no_key_away(
    status: int, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    endpoint = connect(key="a-key-of-some-length-12345")
    server.answer = lambda body, number: replies.Reply(
        {"error": {"message": f"{'x' * 250} {json.dumps(server.headers[number])}"}}, status=status
    )
    with pytest.raises(ProviderError) as caught:
        endpoint.ask(HISTORY)
    assert server.headers[0]["authorization"] == "Bearer a-key-of-some-length-12345"
    assert "a-key" not in str(caught.value)


def test_a_key_in_what_a_model_says_is_hidden(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
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
