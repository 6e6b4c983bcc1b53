"""What was answered is paid for once, and no more is asked than may be spent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.answer_cache import AnswerCache
from histobench.mint.agents.client import MOST_THINKING, Endpoint
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.costs import CostLimitError, CostTracker, Ledger
from histobench.mint.agents.prices import Price
from histobench.mint.messages.parts import Message, ToolSpec

from .conftest import HISTORY

TOOL = ToolSpec(
    "search", "looks something up", {"type": "object", "properties": {"text": {"type": "string"}}}
)


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
    for tool in (TOOL, replace(TOOL, description="finds"), replace(TOOL, name="find")):
        for functions in ((tool,), (tool,), (tool, replace(TOOL, name="last"))):
            endpoint.ask(HISTORY, functions=functions)
    assert len(server.requests) == 4 + 6
    cache.close()


def test_what_is_held_back_is_the_dearest_answer_to_all_that_is_sent(
    connect: Callable[..., Endpoint],
) -> None:
    plain, thinking = (
        connect(sampling=Sampling(max_tokens=7, reasoning_effort=how)) for how in (None, "low")
    )
    read, written = plain.bound(HISTORY)
    assert (written, thinking.bound(HISTORY)) == (7, (read, 7 + MOST_THINKING))
    more = Message("assistant", "four, \u00e9")
    longer = plain.bound((*HISTORY, more))[0]
    assert longer - read >= len(more.content.encode())
    assert plain.bound(HISTORY, [TOOL])[0] - read == len(json.dumps(asdict(TOOL)))
    assert plain.bound((*HISTORY, more), [TOOL], known=(1, 1000))[0] == 1000 + longer - read


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
    assert first.hold(0.7, waited=0.0)
    assert told["a"] == (0.0, 0.7)
    assert not second.hold(0.5, waited=0.0)
    first.settle(0.7, 0.7)
    with pytest.raises(CostLimitError):
        second.hold(0.5, waited=0.0)
    assert second.hold(0.3, waited=0.0)
    assert told == {"a": (0.7, 0.0), "b": (0.0, 0.3)}


def test_an_answer_without_usage_costs_what_was_held_back_for_it(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"choices": [{"message": {"content": "4"}}]})
    prices = Price(2e6, 1e6, cache_write=3e6, reasoning=4e6)  # of reading and writing: the dearest kinds
    endpoint = connect(costs=CostTracker(max_cost=4500.0), price=prices)
    read, written = endpoint.bound(HISTORY)
    assert written == 512
    assert read >= len(HISTORY[0].content)
    for _ in range(2):
        endpoint.ask(HISTORY)
    with pytest.raises(CostLimitError, match=rf"\${2 * (3 * read + 4 * written)}.0000 of at most \$4500"):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 2


def test_a_retry_that_could_pass_the_limit_is_not_sent(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply({"choices": []})
    with pytest.raises(CostLimitError, match=r"\$558.0000 of at most"):
        connect(costs=CostTracker(max_cost=1000.0), price=Price(1e6, 1e6)).ask(HISTORY)
    assert len(server.requests) == 1


def test_the_ledger_of_a_folder_remembers_unusable_answers_and_killed_processes(tmp_path: Path) -> None:
    path = tmp_path / "results" / "spent.jsonl"
    ledger = Ledger(path, before=lambda: 0.5)  # an older version spent that
    assert ledger.spent == 0.5
    assert not path.exists()
    costs = CostTracker(max_cost=2.0, spent=ledger.spent, keep=ledger.keep)
    assert costs.hold(0.4, waited=0.0)
    costs.settle(0.4, 0.3)
    assert Ledger(path, before=lambda: 9.9).spent == pytest.approx(0.8)
    assert costs.hold(0.4, waited=0.0)  # and the process is killed
    with path.open("a") as file:
        file.write('{"dollars": 0.')
    assert Ledger(path).spent == pytest.approx(1.2)
