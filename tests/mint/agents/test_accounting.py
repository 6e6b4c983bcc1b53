"""Prices, the pause that a server asks for, success over several tries."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml

from histobench.core.errors import HistobenchError
from histobench.core.http import retry_after
from histobench.mint.agents.completion import Usage
from histobench.mint.agents.prices import TABLE, Price, find_price, read_prices
from histobench.mint.agents.rate_limits import RateLimiter
from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.uncertainty import pass_at, pass_hat, tries_rows


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
    usage = Usage(1000, 500, cached_tokens=300, cache_writes=100, reasoning_tokens=200)
    expected = (600 * 2 + 300 * 0.5 + 100 * 3 + 300 * 10 + 200 * 20) / 1e6
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


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"},
    ],
)
def test_what_the_headers_say_is_obeyed(headers: dict[str, str]) -> None:
    clock = Clock()
    limiter = RateLimiter({}, clock=clock)
    limiter.hear({"x-ratelimit-remaining-requests": "nonsense", "x-ratelimit-reset-requests": "?"})
    assert limiter.wait(10) == 0.0
    limiter.hear(headers)
    assert limiter.wait(10) == pytest.approx(60.0)
    clock.now += 61
    assert limiter.wait(10) == 0.0


@pytest.mark.parametrize("wrong_by", [-3600.0, 0.0, 3600.0])
def test_a_date_of_the_server_is_read_by_its_own_clock(
    monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    """A clock that was set back, or is wrong, neither makes us wait an hour nor ask at once."""
    true = 1794744000.0
    monkeypatch.setattr("time.time", lambda: true + wrong_by)
    said = {"date": "Sun, 15 Nov 2026 12:00:00 GMT", "retry-after": "Sun, 15 Nov 2026 12:00:20 GMT"}
    assert retry_after(said) == pytest.approx(20.0)
    limiter = RateLimiter({}, clock=Clock())
    prefix = "anthropic-ratelimit-requests"
    reset = {f"{prefix}-remaining": "0", f"{prefix}-reset": "2026-11-15T12:00:30Z"}
    limiter.hear(reset | {"date": said["date"]})
    assert limiter.wait(1) == pytest.approx(30.0)


@pytest.mark.parametrize("reset", ["inf", "1e300", "99999999h", "2999-01-01T00:00:00Z"])
def test_no_server_makes_us_wait_for_ever(reset: str) -> None:
    limiter = RateLimiter({}, clock=Clock())
    limiter.hear({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset})
    assert limiter.wait(1) == 600.0


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
