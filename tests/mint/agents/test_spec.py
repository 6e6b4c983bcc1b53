"""Agents named by a string, prices, limits of rates, success over several tries."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml

from histobench.core.errors import HistobenchError
from histobench.mint.agents.agent_spec import parse_agent
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.prices import FREE, TABLE, Price, find_price, read_prices
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.providers.provider import Capabilities, Question
from histobench.mint.agents.rate_limits import RateLimiter
from histobench.mint.messages.parts import Message
from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.uncertainty import pass_at, pass_hat, tries_rows


@pytest.mark.parametrize(
    ("text", "kind", "target", "url"),
    [
        ("openai:gpt-4o", "openai", "gpt-4o", "https://api.openai.com/v1"),
        ("openai:org/m@http://localhost:1/v1", "openai", "org/m", "http://localhost:1/v1"),
        ("vllm:m@https://host/v1", "vllm", "m", "https://host/v1"),
        ("openai:name@version", "openai", "name@version", "https://api.openai.com/v1"),
        ("openai:llama3:8b@http://localhost:11434/v1", "openai", "llama3:8b", "http://localhost:11434/v1"),
        ("local:", "local", "", None),
        ("local", "local", "", None),
        ("local:a/b.gguf", "local", "a/b.gguf", None),
        ("replay:x.jsonl.gz", "replay", "x.jsonl.gz", None),
        ("human", "human", "", None),
    ],
)
def test_a_string_names_an_agent(text: str, kind: str, target: str, url: str | None) -> None:
    spec = parse_agent(text)
    assert (spec.kind, spec.target, spec.base_url) == (kind, target, url)
    assert parse_agent(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["opena:gpt", "openai", "openai:", "vllm:m", "openai:m@http:///v1", "replay:", ""]
)
def test_a_string_that_names_none_is_explained(text: str) -> None:
    with pytest.raises(HistobenchError):
        parse_agent(text)


def test_the_folder_of_a_model_has_no_owner_and_no_slash() -> None:
    assert parse_agent("openai:meta-llama/Llama-3:8b@http://h/v1").folder_name == "Llama-3_8b"


def test_a_providers_key_never_goes_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.delenv("HISTOBENCH_API_KEY", raising=False)
    assert parse_agent("openai:m").api_key() == "secret"
    assert parse_agent("openai:m@http://elsewhere/v1").api_key() is None
    monkeypatch.setenv("HISTOBENCH_API_KEY", "own")
    assert parse_agent("openai:m@https://elsewhere/v1").api_key() == "own"


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(HistobenchError, match="ANTHROPIC_API_KEY"):
        parse_agent("anthropic:m").api_key()


def test_a_key_with_a_line_end_works_and_one_that_no_header_can_carry_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HISTOBENCH_API_KEY", "own\n")
    assert parse_agent("openai:m@https://elsewhere/v1").api_key() == "own"
    for key in ("sk–secret", "sk-secret\nsk-other"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(HistobenchError, match="OPENAI_API_KEY") as caught:
            parse_agent("openai:m").api_key()
        assert "secret" not in str(caught.value)


def test_a_cost_is_unknown_when_tokens_are(tmp_path: Path) -> None:
    assert Price(2.0, 4.0).of(Usage(1_000_000, 500_000)) == 4.0
    assert Price(2.0, 4.0).of(Usage(known=False)) is None
    assert FREE.of(Usage(known=False)) == 0.0


def test_a_broken_price_table_is_explained(tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    for text in ("m: 3\n", "m: [1]\n", "- m\n", "m: [a, b]\n", "m: [-1, 2]\n", "{"):
        own.write_text(text)
        with pytest.raises(HistobenchError, match="prices"):
            read_prices(own)


@pytest.mark.parametrize(
    ("agent", "variable"),
    [
        ("openai:m@http://api.openai.com/v1", "OPENAI_API_KEY"),
        ("anthropic:m@http://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("openai:m@http://elsewhere/v1", "HISTOBENCH_API_KEY"),
        ("openai:m@http://127.0.0.1.elsewhere.org/v1", "HISTOBENCH_API_KEY"),
        ("openai:m@http://user:opensesame@elsewhere/v1", None),
        ("openai:m@http://elsewhere/v1?api_key=opensesame", None),
    ],
)
def test_no_key_travels_unencrypted_to_another_machine(
    agent: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HISTOBENCH_API_KEY", raising=False)
    if variable:
        monkeypatch.setenv(variable, "opensesame")
    with pytest.raises(HistobenchError, match="unencrypted") as caught:
        parse_agent(agent).api_key()
    assert "opensesame" not in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HISTOBENCH_KEY_OVER_HTTP", "1")
    assert parse_agent(agent).api_key() == ("opensesame" if variable else None)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "127.8.0.1", "[::1]:8000"])
def test_a_key_may_travel_unencrypted_within_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_API_KEY", "own")
    assert parse_agent(f"openai:m@http://{host}/v1").api_key() == "own"


def test_nothing_that_describes_an_agent_shows_a_password() -> None:
    spec = parse_agent("openai:m@https://user:opensesame@host/v1?api_key=querysecret")
    wire = ChatCompletionsAPI(spec.target, spec.base_url or "", "opensesame")
    request = wire.request(Question((Message("user", "hi"),), Sampling()), Capabilities())
    for text in (str(spec), repr(spec), repr(wire), repr(request)):
        assert "opensesame" not in text
        assert "querysecret" not in text
    assert request.headers["Authorization"] == "Bearer opensesame"
    assert spec.base_url == "https://user:opensesame@host/v1?api_key=querysecret"


@pytest.mark.parametrize("url", ["http://[/v1", "http://me:open/sesame@h/v1", "http://me:1?sesame@h/v1"])
def test_a_wrong_address_is_explained_and_not_repeated(url: str) -> None:
    with pytest.raises(HistobenchError, match="not a valid address") as caught:
        parse_agent(f"openai:m@{url}")
    assert "sesame" not in str(caught.value)


def test_every_shipped_price_has_a_source_and_a_date() -> None:
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    for source in table["sources"].values():
        assert source["url"].startswith("https://")
        assert source["read"].year >= 2026
    assert {entry["source"] for entry in table["models"].values()} <= table["sources"].keys()
    assert read_prices().keys() == table["models"].keys()


def test_cached_and_reasoning_tokens_have_prices_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("m: {read: 2, written: 10, cached: 0.5, cache_write: 3, reasoning: 20}\nplain: [1, 2]\n")
    prices = read_prices(path)
    for writes, thought in ((100, 200), (700, 500)):  # the second: nothing that is not cached or thought
        among = {"cached_tokens": 300, "cache_writes": writes, "reasoning_tokens": thought}
        usage = Usage.reported([1000], [500], **among)
        read = (700 - writes) * 2 + 300 * 0.5 + writes * 3
        expected = (read + (500 - thought) * 10 + thought * 20) / 1e6
        assert prices["m"].of(usage) == pytest.approx(expected)
        assert prices["plain"].of(usage) == pytest.approx((1000 * 1 + 500 * 2) / 1e6)
    path.write_text("m: {read: 2}\n")
    with pytest.raises(HistobenchError, match="the price of m"):
        read_prices(path)


@pytest.mark.parametrize(
    ("model", "known"),
    [("claude-opus-4-20250514", True), ("claude-opus-4-9", False), ("claude-opus-4-5-20251101", True)],
)
def test_a_later_version_is_another_model(model: str, known: bool) -> None:
    assert (
        find_price(model, {"claude-opus-4": Price(1, 1), "claude-opus-4-5": Price(2, 2)}) is not None
    ) is known


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_of_requests_is_kept_over_a_minute() -> None:
    clock = Clock()
    limiter = RateLimiter({"requests": 6}, clock=clock)
    assert [limiter.wait(1) for _ in range(6)] == [0.0] * 6
    assert limiter.wait(1) == pytest.approx(10.0)
    clock.now += 10
    assert limiter.wait(1) == 0.0


def test_a_limit_of_tokens_is_corrected_by_what_an_answer_took() -> None:
    clock = Clock()
    limiter = RateLimiter({"tokens": 600}, clock=clock)
    assert limiter.wait(600) == 0.0
    limiter.settle(600, 100)  # 500 are left
    assert limiter.wait(500) == 0.0
    assert limiter.wait(60) == pytest.approx(6.0)


def outcomes(results: list[list[bool]]) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome("m", "None", "None", 5, "gsm8k", str(task), success)
        for task, tries in enumerate(results)
        for success in tries
    ]


def test_pass_at_k_and_pass_hat_k_are_means_over_all_choices_of_tries() -> None:
    results = [[True, False, True, False], [False] * 4, [True, True, True, False], [True] * 4]
    played = outcomes(results)
    for tries in range(1, 5):
        choices = [list(combinations(task, tries)) for task in results]
        at = sum(sum(map(any, task)) / len(task) for task in choices) / len(results)
        hat = sum(sum(map(all, task)) / len(task) for task in choices) / len(results)
        assert pass_at(played, tries) == pytest.approx(at)
        assert pass_hat(played, tries) == pytest.approx(hat)
    (row,) = tries_rows(played)
    assert (row.tasks, len(row.pass_at)) == (4, 4)
    assert pass_at(played, 5) is None
