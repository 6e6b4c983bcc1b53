"""Every 200 that cannot be read is a malformed answer, in all four formats, and never another error."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.agents.client import Endpoint, clean_completion
from histobench.mint.agents.completion import MalformedAnswerError, ProviderError, Sampling
from histobench.mint.agents.prices import Price
from histobench.mint.agents.provenance import turn_record
from histobench.mint.agents.providers import provider_format
from histobench.mint.messages.record import message_record

from .conftest import HISTORY

FIXTURES = Path(__file__).parent / "fixtures"
WRONG: tuple[Any, ...] = (
    None,
    0,
    -1,
    True,
    "",
    "x",
    1e400,
    10**400,
    [],
    [[]],
    [None],
    ["x"],
    [0],
    {},
    {"x": None},
)


def answers(value: Any) -> Iterator[dict[str, Any]]:
    """The answers among recorded payloads."""
    if isinstance(value, dict):
        if any(name in value for name in ("choices", "output", "candidates", "stop_reason")):
            yield value
        for item in value.values():
            yield from answers(item)
    elif isinstance(value, list):
        for item in value:
            yield from answers(item)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def mutated(payload: Any, path: tuple[Any, ...], value: Any) -> Any:
    payload = copy.deepcopy(payload)
    owner = payload
    for key in path[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return payload


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic", "gemini"])
def test_a_mutated_answer_is_read_or_malformed(form: str) -> None:
    recorded = list(answers(json.loads((FIXTURES / f"{form}.json").read_text())))
    assert recorded
    api = provider_format({"chat": "openai"}.get(form, form))("m", "http://host/v1")
    generator, tried, malformed = random.Random(1), 0, 0
    for payload in recorded:
        for path in places(payload):
            for wrong in (..., *generator.sample(WRONG, 8)):
                changed, tried = mutated(payload, path, wrong), tried + 1
                try:
                    completion = clean_completion(api, changed, Sampling())
                except MalformedAnswerError:
                    malformed += 1
                    continue
                message = completion.message  # what a run does with it
                json.dumps(
                    [message_record(message), turn_record(completion, Price(1, 2).of(completion.usage))]
                )
                assert isinstance(completion.text, str)
                assert isinstance(completion.is_empty, bool)
                assert (Price(1, 2).of(api.usage(changed)) or 0.0) >= 0.0
    assert tried > 500
    assert malformed > tried // 20


def test_nothing_in_an_answer_ends_a_run(server: Any, connect: Callable[..., Endpoint], replies: Any) -> None:
    server.answer = lambda body, number: replies.Reply({"choices": [{"message": None}]})
    with pytest.raises(ProviderError, match="given up after 4 attempts: the answer is not as documented"):
        connect().ask(HISTORY)


def test_a_body_of_brackets_is_cut_before_it_is_looked_at(
    server: Any, connect: Callable[..., Endpoint], replies: Any
) -> None:
    server.answer = lambda body, number: replies.Reply(b"[" * 300_000)
    began = time.monotonic()
    with pytest.raises(ProviderError, match=r"\[\[\["):
        connect().ask(HISTORY)
    assert time.monotonic() - began < 20
