"""A server that the commands of pages and messages talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chat_server import ChatServer, chat


@pytest.fixture(scope="module")
def chat_address() -> Iterator[str]:
    server = ChatServer()
    server.answer = lambda body, number: chat("<solution>7</solution>")
    yield server.url
    server.close()
