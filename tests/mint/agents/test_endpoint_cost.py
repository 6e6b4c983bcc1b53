"""What was answered is paid for once; whatever a server does, its bill stays within the limit."""

from __future__ import annotations

import gzip
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.agent import EndpointPlayer, EpisodeKey, EpisodeLimits
from histobench.mint.agents.answer_cache import AnswerCache, request_key
from histobench.mint.agents.client import MOST_IMAGE_TOKENS, MOST_THINKING
from histobench.mint.agents.completion import ProviderError, Sampling, Usage
from histobench.mint.agents.costs import CostLimitError, CostTracker, Ledger
from histobench.mint.agents.prices import Price
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Image, Message, Text, ToolSpec

from .conftest import FAST, HISTORY, Connect

TOOL = ToolSpec(
    "search", "looks something up", {"type": "object", "properties": {"text": {"type": "string"}}}
)


@pytest.mark.slow
def test_a_damaged_answer_in_the_cache_is_asked_for_again(
    tmp_path: Path, server: Any, connect: Connect
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


@pytest.mark.slow
def test_another_sample_sampling_or_conversation_is_another_request(
    tmp_path: Path, server: Any, connect: Connect
) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite")
    endpoint = connect(cache=cache)
    endpoint.ask(HISTORY)
    endpoint.ask(HISTORY, sample=2)
    endpoint.ask((*HISTORY, Message("user", "Well?")))
    connect(cache=cache, sampling=Sampling(temperature=1.0)).ask(HISTORY)
    for _ in range(2):
        endpoint.ask(HISTORY, functions=(TOOL,))
    assert len(server.requests) == 4 + 1
    cache.close()


def test_whatever_changes_an_answer_is_in_the_key_of_the_cache() -> None:
    (message,), last = HISTORY, replace(TOOL, name="last")
    tools = [[], [last], [TOOL, last], [last, TOOL], [replace(TOOL, parameters={})]]
    changed: list[dict[str, Any]] = [{"content": "Hm?"}, {"role": "system"}]
    changed += [{"parts": (Text("?"), Image(data))} for data in (b"x", b"y")]
    talks = [(message, message), *([replace(message, **change)] for change in changed)]
    usual: list[Any] = ["url", "model", HISTORY, Sampling(), 1, [TOOL]]
    others = [["other"], ["other"], talks, [Sampling(temperature=1.0)], [2], tools]
    asked = [usual, *([*usual[:k], one, *usual[k + 1 :]] for k, each in enumerate(others) for one in each)]
    assert len({request_key(*each) for each in asked}) == len(asked)


def test_what_is_held_back_is_the_dearest_answer_to_all_that_is_sent(connect: Connect) -> None:
    plain, thinking = (
        connect(sampling=Sampling(max_tokens=7, reasoning_effort=how)) for how in (None, "low")
    )
    read, written = plain.bound(HISTORY)
    assert (written, thinking.bound(HISTORY)) == (7, (read, 7 + MOST_THINKING))
    more = Message("assistant", "four, \u00e9")
    longer = plain.bound((*HISTORY, more))[0]
    assert longer - read >= len(more.content.encode())
    images = (Image(b"x"), Text("?"), Image(b"y"))
    assert plain.bound((*HISTORY, Message("user", "?", images)))[0] - read > 2 * MOST_IMAGE_TOKENS
    assert plain.bound(HISTORY, [TOOL])[0] - read == len(json.dumps(asdict(TOOL)))
    assert plain.bound((*HISTORY, more), [TOOL], known=(1, 1000))[0] == 1000 + longer - read


def test_nothing_is_asked_once_the_limit_is_spent(server: Any, connect: Connect) -> None:
    sampling = Sampling(max_tokens=5)  # 5 dollars an answer
    endpoint = connect(costs=CostTracker(max_cost=12.0), price=Price(0, 1e6), sampling=sampling)
    endpoint.ask(HISTORY)
    endpoint.ask(HISTORY)
    with pytest.raises(
        CostLimitError, match=r"\$10.0000 of at most \$12.0000 spent, and the next answer may cost"
    ):
        endpoint.ask(HISTORY)
    assert len(server.requests) == 2


def test_an_episode_may_come_up_to_its_limits(connect: Connect) -> None:
    endpoint = connect(price=Price(1e6, 1e6))
    most = sum(endpoint.bound(HISTORY))  # tokens, and dollars
    for name in ("tokens", "cost"):
        for limit in (most, most - 1):
            player = EndpointPlayer("m", endpoint, limits=EpisodeLimits(**{name: limit}))
            agent = player.open(EpisodeKey("gsm8k", 1))
            refused = pytest.raises(RequestRefusedError, match="limit of the episode")
            with nullcontext() if limit == most else refused:
                agent(HISTORY)
            assert len(agent.turns) == (limit == most)


def test_an_episode_pays_once_and_for_empty_answers_and_counts_what_is_known(
    server: Any, connect: Connect, replies: Any, tmp_path: Path
) -> None:
    server.answer = lambda body, number: replies.chat("" if number == 0 else "Hm.")
    cache, long = AnswerCache(tmp_path / "answers.sqlite"), Message("user", "w" * 5000)
    endpoint = connect(price=Price(1e6, 2e6), cache=cache, limits={"tokens": 20_000.0})
    player = EndpointPlayer("m", endpoint, limits=EpisodeLimits(tokens=sum(endpoint.bound([long]))))
    agent, again, other = (player.open(EpisodeKey("gsm8k", 1, repeat)) for repeat in (1, 1, 2))
    agent((long,))
    assert (agent.usage, agent.cost, endpoint.costs.spent) == (Usage(20, 10), 40.0, 40.0)
    agent((long, Message("assistant", "Hm."), Message("user", "Go on.")))  # ten tokens, not 5000 bytes
    assert (agent.usage, agent.cost, len(server.requests)) == (Usage(30, 15), 60.0, 3)
    again((long,))
    assert (again.usage, again.cost, len(server.requests)) == (Usage(20, 10), 0.0, 3)
    other((long,))
    assert (other.usage, other.cost, len(server.requests)) == (Usage(10, 5), 20.0, 4)
    assert endpoint._limiter._levels["tokens"] >= 20_000 - 4 * 15  # of the thousands that were expected
    cache.close()


@pytest.mark.slow
def test_questions_at_the_same_time_do_not_pass_the_limit_together(
    server: Any, connect: Connect, replies: Any
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
    server: Any, connect: Connect, replies: Any
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


def test_the_ledger_of_a_folder_remembers_unusable_answers_and_killed_processes(tmp_path: Path) -> None:
    path = tmp_path / "results" / "spent.jsonl"
    ledger = Ledger(path)
    assert not path.exists()
    costs = CostTracker(max_cost=2.0, spent=ledger.spent, keep=ledger.keep)
    assert costs.hold(0.4, waited=0.0)
    costs.settle(0.4, 0.3)
    assert Ledger(path).spent == pytest.approx(0.3)
    assert costs.hold(0.4, waited=0.0)  # and the process is killed
    with path.open("a") as file:
        file.write('{"dollars": 0.')
    assert Ledger(path).spent == pytest.approx(0.7)


PRICE = Price(2.0, 10.0)
WRITTEN = 400
#: What the server bills for every request that it does not refuse, whatever it answers.
BILL = PRICE.of(Usage(20, WRITTEN)) or 0.0
LIMIT, AT_ONCE = 0.03, 4
USAGE = {"prompt_tokens": 20, "completion_tokens": WRITTEN}


def answer(message: Any = "4", **fields: Any) -> dict[str, Any]:
    content = message if isinstance(message, dict | None) else {"content": message}
    return {"choices": [{"message": content, "finish_reason": "stop"}], "usage": USAGE, **fields}


#: Behavior -> the body, and what else is special of the reply.
BEHAVIORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "good": (answer(), {}),
    "slow": (answer(), {"delay": 0.05}),
    "usage missing": ({"choices": [{"message": {"content": "4"}}]}, {}),
    "usage null": (answer(usage=None), {}),
    "usage negative": (answer(usage={"prompt_tokens": -5, "completion_tokens": -5}), {}),
    "usage infinite": (b'{"choices": [], "usage": {"prompt_tokens": 1e999, "completion_tokens": 1}}', {}),
    "cached over read": (answer(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 10**9}}), {}),
    "choices empty": (answer(choices=[]), {}),
    "calls malformed": (answer({"content": None, "tool_calls": [4]}), {}),
    "empty text": (answer(""), {}),
    "empty body": (b"", {}),
    "a page": (b"<html>Bad gateway</html>", {"content_type": "text/html"}),
    "no UTF-8": (b"\xff\xfe\x00", {}),
    "packed bomb": (gzip.compress(b" " * (1 << 20)), {"headers": {"Content-Encoding": "gzip"}}),
    "too long": (b" " * (1 << 18), {}),
    "cut midway": (answer(), {"cut": 40}),
    "hangs": (answer(), {"delay": 600}),
    "drips": (b" " * 1000, {"drip": 0.2}),
    "hangs up": (None, {}),
    "error in 200": ({"error": {"code": 503}}, {}),
    "408": ({"error": "slow"}, {"status": 408}),
    "500": ({"error": "oops"}, {"status": 500}),
    "filter": ({"error": {"code": "content_filter"}}, {"status": 400}),
    "redirect": (b"", {"status": 302}),
    "400 with usage": ({"error": "bad", "usage": USAGE}, {"status": 400}),
    # Refused, and not billed:
    "429": ({"error": "slow down"}, {"status": 429, "headers": {"Retry-After": "0"}}),
    "503": ({"error": "overloaded"}, {"status": 503}),
    "unknown model": ({"error": "no such model"}, {"status": 404}),
}
UNBILLED = ("429", "503", "unknown model")


@pytest.mark.sample(8)
@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.parametrize("every", [1, 2], ids=["always", "every other request"])
def test_the_bill_stays_within_the_limit(
    behavior: str, every: int, server: Any, connect: Connect, replies: Any, tmp_path: Path
) -> None:
    body, special = BEHAVIORS[behavior]
    billed = []

    def reply(request: Any, number: int) -> Any:
        bad = number % every == 0
        billed.append(0.0 if bad and behavior in UNBILLED else BILL)
        if bad and body is None:
            raise ConnectionAbortedError
        return replies.Reply(body, **special) if bad else replies.Reply(answer())

    server.answer = reply
    quick = replace(FAST, attempts=3, answer_timeout=0.25 if behavior in ("hangs", "drips") else 60.0)

    def command() -> CostTracker:
        """Up to 40 questions, as a run asks them; a second command continues with the ledger of the first."""
        ledger = Ledger(tmp_path / "spent.jsonl")
        costs = CostTracker(max_cost=LIMIT, spent=ledger.spent, keep=ledger.keep)
        sampling = Sampling(max_tokens=WRITTEN)
        endpoint = connect(costs=costs, price=PRICE, sampling=sampling, retry=quick, concurrency=AT_ONCE)

        def ask(number: int) -> bool:
            try:
                endpoint.ask((*HISTORY, Message("user", str(number))))
            except CostLimitError:
                return False
            except (ProviderError, RequestRefusedError):
                pass
            return True

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for first in range(0, 40, AT_ONCE):
                if not any(threads.map(ask, range(first, first + AT_ONCE))):
                    break
        return costs

    for _ in range(2):
        costs = command()
        assert sum(billed) <= LIMIT + 1e-9
        assert costs.spent >= sum(billed) - 1e-9
    if behavior not in UNBILLED or every == 2:
        assert sum(billed) > 0.4 * LIMIT  # and the limit can be used
