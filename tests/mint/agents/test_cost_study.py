"""A cost study: whatever a server does, its bill stays within the limit, also of a repeated command."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import ProviderError, Sampling, Usage
from histobench.mint.agents.costs import CostLimitError, CostTracker, Ledger
from histobench.mint.agents.prices import Price
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message

from .conftest import FAST, HISTORY

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
    "usage true": (answer(usage={"prompt_tokens": True, "completion_tokens": True}), {}),
    "usage of words": (answer(usage={"prompt_tokens": "many", "completion_tokens": "few"}), {}),
    "usage infinite": (b'{"choices": [], "usage": {"prompt_tokens": 1e999, "completion_tokens": 1}}', {}),
    "usage enormous": (answer(usage={"prompt_tokens": 10**400, "completion_tokens": 1}), {}),
    "usage half": (answer(usage={"prompt_tokens": 20}), {}),
    "usage a list": (answer(usage=[20, WRITTEN]), {}),
    "cached over read": (answer(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 10**9}}), {}),
    "message null": (answer(None), {}),
    "message empty": (answer({}), {}),
    "choices empty": (answer(choices=[]), {}),
    "choices null": (answer(choices=None), {}),
    "choices an object": (answer(choices={}), {}),
    "no choices": ({"usage": USAGE}, {}),
    "content a number": (answer({"content": 4}), {}),
    "content an object": (answer({"content": {"text": "4"}}), {}),
    "content numbers": (answer({"content": [4]}), {}),
    "calls malformed": (answer({"content": None, "tool_calls": [4]}), {}),
    "finish error": (answer(choices=[{"message": {"content": "4"}, "finish_reason": "error"}]), {}),
    "finish a number": (answer(choices=[{"message": {"content": "4"}, "finish_reason": 4}]), {}),
    "empty text": (answer(""), {}),
    "empty text, no usage": (answer("", usage=None), {}),
    "empty body": (b"", {}),
    "a page": (b"<html>Bad gateway</html>", {"content_type": "text/html"}),
    "no UTF-8": (b"\xff\xfe\x00", {}),
    "half a JSON": (b'{"choices": [{"message": {"content": "4', {}),
    "brackets": (b"[" * 300_000, {}),
    "no gzip": (b"not packed", {"headers": {"Content-Encoding": "gzip"}}),
    "packed bomb": (gzip.compress(b" " * (1 << 20)), {"headers": {"Content-Encoding": "gzip"}}),
    "too long": (b" " * (1 << 18), {}),
    "cut midway": (answer(), {"cut": 40}),
    "cut at once": (answer(), {"cut": 0}),
    "hangs": (answer(), {"delay": 600}),
    "drips": (b" " * 1000, {"drip": 0.2}),
    "hangs up": (None, {}),
    "error in 200": ({"error": {"code": 503}}, {}),
    "error in 200 with usage": ({"error": {"code": 502}, "usage": USAGE}, {}),
    "408": ({"error": "slow"}, {"status": 408}),
    "500": ({"error": "oops"}, {"status": 500}),
    "502": (b"Bad gateway", {"status": 502}),
    "504": (b"", {"status": 504}),
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
    behavior: str,
    every: int,
    server: Any,
    connect: Callable[..., Endpoint],
    replies: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("histobench.mint.agents.client.MAX_ANSWER_BYTES", 1 << 17)
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
