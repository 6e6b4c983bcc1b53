"""What was answered is paid for once, and no more is asked than may be spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.cache import AnswerCache
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.cost import CostLimitError, CostTracker, Price
from histobench.mint.messages.parts import Message

from .conftest import HISTORY


def test_an_answer_is_paid_for_once(
    tmp_path: Path, server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    for expected_requests, cached in ((1, False), (1, True)):
        cache = AnswerCache(tmp_path / "answers.sqlite")
        completion = connect(cache=cache, price=Price(1e6, 0.0)).ask(HISTORY)
        assert (completion.text, completion.usage, completion.cached) == ("hello", Usage(10, 5), cached)
        assert len(server.requests) == expected_requests
        assert cache.spent() == 10.0
        cache.close()


def test_a_damaged_answer_in_the_cache_is_asked_for_again(
    tmp_path: Path, server: Any, connect: Callable[..., Endpoint]
) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite")
    connect(cache=cache).ask(HISTORY)
    for damage in ("{broken", "[]", '{"text": "4"}'):
        with sqlite3.connect(tmp_path / "answers.sqlite") as database:
            database.execute("UPDATE answers SET answer = ?", (damage,))
        database.close()
        assert not connect(cache=cache).ask(HISTORY).cached
    assert connect(cache=cache).ask(HISTORY).cached
    assert len(server.requests) == 4
    cache.close()


def test_another_sample_sampling_or_conversation_is_another_request(
    tmp_path: Path, server: Any, connect: Callable[..., Endpoint]
) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite")
    endpoint = connect(cache=cache)
    endpoint.ask(HISTORY)
    endpoint.ask(HISTORY, sample=2)
    endpoint.ask((*HISTORY, Message("user", "Well?")))
    connect(cache=cache, sampling=Sampling(temperature=1.0)).ask(HISTORY)
    assert len(server.requests) == 4
    cache.close()


def test_nothing_is_asked_once_the_limit_is_spent(server: Any, connect: Callable[..., Endpoint]) -> None:
    endpoint = connect(costs=CostTracker(max_cost=20.0), price=Price(1e6, 1e6))
    endpoint.ask(HISTORY)
    endpoint.ask(HISTORY)
    with pytest.raises(CostLimitError):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 2


def test_a_limit_that_cannot_be_kept_stops_the_run(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"choices": [{"message": {"content": "4"}}]})
    endpoint = connect(costs=CostTracker(max_cost=20.0), price=Price(1e6, 1e6))
    endpoint.ask(HISTORY)
    with pytest.raises(CostLimitError, match="does not say how many tokens"):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 1
