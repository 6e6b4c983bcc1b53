"""What was really sent in a turn: the record of a request, and the same request built again from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.redaction import without_credentials
from histobench.mint.agents.completion import Completion, Receipt, Sampling
from histobench.mint.agents.providers import provider_format
from histobench.mint.agents.providers.provider import Capabilities, ProviderAPI, Question, Request
from histobench.mint.messages.parts import ToolSpec
from histobench.mint.messages.record import load_from, message_from_record

if TYPE_CHECKING:
    from histobench.mint.results.stored_episode import StoredEpisode

#: Where the formats put the conversation and the tools, which are stored elsewhere.
_CONVERSATION = frozenset({"messages", "input", "contents", "system", "systemInstruction", "tools"})


def body_bytes(request: Request) -> bytes:
    """The body as it is posted."""
    return json.dumps(request.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def with_receipt(
    completion: Completion,
    api: ProviderAPI,
    request: Request,
    sampling: Sampling,
    capabilities: Capabilities,
    payload: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    problem: str | None = None,
) -> Completion:
    """The answer with the record of how it was asked for."""
    usual = Sampling()
    receipt = Receipt(
        format=api.format,
        url=without_credentials(request.url),
        asked_model=api.model,
        sha256=hashlib.sha256(body_bytes(request)).hexdigest(),
        sent={name: value for name, value in request.body.items() if name not in _CONVERSATION},
        sampling={name: value for name, value in asdict(sampling).items() if value != getattr(usual, name)},
        without=tuple(sorted(capabilities.without)),
        merge_roles=capabilities.merge_roles,
        model=_text(payload, "model", "modelVersion"),
        id=_text(payload, "id", "responseId"),
        fingerprint=_text(payload, "system_fingerprint"),
        seconds=round(seconds, 3),
        problem=problem,
    )
    return replace(completion, receipt=receipt)


def turn_record(completion: Completion, cost: float | None) -> dict[str, Any]:
    """A turn of `details.jsonl`: the receipt, how the answer ended, its tokens by class and its cost."""
    receipt = asdict(completion.receipt) if completion.receipt else {}
    record = {name: value for name, value in receipt.items() if value not in (None, (), {}, False)}
    record |= {"finish": completion.finish, "cost": cost}
    if completion.ending:
        record["ending"] = completion.ending
    if completion.cached:
        record["cached"] = True
    record["usage"] = asdict(completion.usage)
    if completion.discarded.total_tokens:
        record["discarded"] = asdict(completion.discarded)
    return record


def request_of_turn(episode: StoredEpisode, number: int) -> bytes:
    """The body that was posted in a turn of a stored episode, counted from 0; byte for byte, or it raises."""
    turns = episode.details.get("turns") or []
    if not 0 <= number < len(turns) or "sha256" not in turns[number]:
        raise HistobenchError(f"the record of turn {number} holds no request (turns: {len(turns)})")
    turn = turns[number]
    history = episode.state["history"][: turn["messages"]]
    messages = [message_from_record(entry, load_from(episode.folder)) for entry in history]
    functions: list[ToolSpec] = []
    if "functions" in turn:
        functions = [ToolSpec(**spec) for spec in episode.details["functions"][turn["functions"]]]
    settings = dict(turn.get("sampling") or {})
    settings["stop"] = tuple(settings.get("stop", ()))
    capabilities = Capabilities(frozenset(turn.get("without") or ()), bool(turn.get("merge_roles")))
    # The address is no part of the body, and the recorded one has lost its credentials.
    api = provider_format(turn["format"])(turn["asked_model"], "http://rebuilt")
    question = Question(messages, Sampling(**settings), functions)
    body = body_bytes(api.request(question, capabilities))
    if hashlib.sha256(body).hexdigest() != turn["sha256"]:
        raise HistobenchError(
            "the record does not give the request that was sent: another version of histobench made it, or "
            "the results were edited"
        )
    return body


def _text(payload: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := payload.get(name), str)), None)
