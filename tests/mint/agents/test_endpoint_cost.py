"""What was answered is paid for once, and no more is asked than may be spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.answer_cache import AnswerCache
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.spending import CostLimitError, CostTracker, Price
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


@pytest.mark.slow
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
    sampling = Sampling(max_tokens=5)  # 5 dollars an answer
    endpoint = connect(costs=CostTracker(max_cost=12.0), price=Price(0, 1e6), sampling=sampling)
    endpoint.ask(HISTORY)
    endpoint.ask(HISTORY)
    with pytest.raises(
        CostLimitError, match=r"\$10.0000 of at most \$12.0000 spent, and the next answer may cost"
    ):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 2


@pytest.mark.slow
def test_questions_at_the_same_time_do_not_pass_the_limit_together(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply(replies.chat("4").raw, delay=0.05)
    costs = CostTracker(max_cost=0.10)
    price = Price(0, 1000.0)  # five tokens: half a cent; at most ten: a cent
    endpoint = connect(costs=costs, price=price, sampling=Sampling(max_tokens=10), concurrency=6)

    def ask(number: int) -> bool:
        try:
            endpoint.ask((*HISTORY, Message("user", str(number))))
        except CostLimitError:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        answered = list(threads.map(ask, range(40)))
    assert server.most_at_once > 1
    assert costs.spent <= 0.10
    assert costs.spent == pytest.approx(0.005 * sum(answered))
    assert costs.spent > 0.085  # what is held back too much comes free again


def test_two_processes_look_at_what_the_other_holds_back() -> None:
    told: dict[str, tuple[float, float]] = {"a": (0.0, 0.0), "b": (0.0, 0.0)}
    first, second = (
        CostTracker(
            max_cost=1.0,
            others=lambda other=other: told[other],
            keep=lambda paid, held, me=me: told.__setitem__(me, (paid, held)),
        )
        for me, other in (("a", "b"), ("b", "a"))
    )
    with first.reserved(0.7):
        assert told["a"] == (0.0, 0.7)
        assert not second.has_room() or told["b"] == (0.0, 0.0)
        first.book(Usage(), 0.7)
        with pytest.raises(CostLimitError), second.reserved(0.5):
            pass
    with second.reserved(0.3):
        assert told == {"a": (0.7, 0.0), "b": (0.0, 0.3)}


def test_a_limit_that_cannot_be_kept_stops_the_run(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"choices": [{"message": {"content": "4"}}]})
    endpoint = connect(costs=CostTracker(max_cost=20.0), price=Price(1.0, 1.0))
    endpoint.ask(HISTORY)
    with pytest.raises(CostLimitError, match="does not report how many tokens"):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 1


def test_a_question_of_a_batch_does_not_wait_for_money() -> None:
    costs = CostTracker(max_cost=1.0)
    with costs.reserved(0.7), pytest.raises(CostLimitError), costs.reserved(0.7, wait=False):
        pass
