"""An endpoint over a real server that fails in every way providers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from histobench.core.http import RetryPolicy
from histobench.core.redaction import remember_secret
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.messages.parts import Message

HISTORY = (Message("user", "What is 2 + 2?"),)
#: Opens an endpoint on the server of the test.
Connect = Callable[..., Endpoint]
FAST = RetryPolicy(attempts=4, first_pause=0.01, longest_pause=0.02, answer_timeout=120.0)


@pytest.fixture
def connect(server: Any) -> Iterator[Connect]:
    opened = []

    def make(**options: Any) -> Endpoint:
        sampling = options.pop("sampling", Sampling(stop=("\nTask:",)))
        options.setdefault("retry", FAST)
        key = options.pop("key", "key")
        remember_secret(key)
        endpoint = Endpoint(ChatCompletionsAPI("some-model", server.url, key), sampling, **options)
        opened.append(endpoint)
        return endpoint

    yield make
    server.released.set()
    for endpoint in opened:
        endpoint.close()
