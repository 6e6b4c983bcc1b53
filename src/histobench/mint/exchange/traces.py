"""Episodes as traces: spans of OpenTelemetry (OTLP as JSON), or one plain line for each turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from histobench.core.files import atomic_path, write_text
from histobench.core.version import __version__
from histobench.mint.envs.action import classify
from histobench.mint.results.stored_episode import StoredEpisode

_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2


def write_spans(episodes: Sequence[StoredEpisode], path: str | Path) -> int:
    """One trace for each episode whose times were kept; returns how many have none and are left out.

    Names follow the semantic conventions for generative AI: `invoke_agent` for the episode, `chat` for each
    answer of the model, `execute_tool` for what ran between two answers.
    """
    timed = [episode for episode in episodes if episode.details.get("started")]
    spans = [span for episode in timed for span in _spans(episode)]
    resource = {"attributes": _attributes({"service.name": "histobench", "service.version": __version__})}
    scope = {"scope": {"name": "histobench.mint", "version": __version__}, "spans": spans}
    write_text(path, json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}))
    return len(episodes) - len(timed)


def write_turns(episodes: Sequence[StoredEpisode], path: str | Path) -> None:
    """JSON lines: who said what in which turn of which episode, and how that was read."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for episode in episodes:
            for line in _turn_lines(episode):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _turn_lines(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    outcome = episode.outcome
    who = {"run": outcome.run_name, "dataset": outcome.task, "task_id": outcome.task_id}
    for number, (text, answer) in enumerate(episode.exchanges, start=1):
        yield {**who, "turn": number, "kind": classify(text).kind, "said": text, "answer": answer}
    yield {**who, "turn": None, "success": outcome.success, "terminate_reason": outcome.terminate_reason}


def _spans(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    outcome, details = episode.outcome, episode.details
    start = float(details["started"])
    name = f"{outcome.run_name} {outcome.task} {outcome.task_id} {details.get('repeat', 1)} {start}"
    trace, root = _id(name, 16), _id(f"{name} root", 8)
    end = start + float(details["seconds"])
    tokens: Any = episode.state.get("token_counter") or {}
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": outcome.model,
        "gen_ai.request.model": episode.cell.model,
        "gen_ai.usage.input_tokens": tokens.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": tokens.get("completion_tokens"),
        "histobench.dataset": outcome.task,
        "histobench.task_id": outcome.task_id,
        "histobench.k": outcome.k,
        "histobench.success": outcome.success,
        "histobench.terminate_reason": outcome.terminate_reason,
    }
    status = _OK if outcome.success else _ERROR
    yield _span(trace, root, "", f"invoke_agent {outcome.model}", start, end, attributes, _INTERNAL, status)
    times = details.get("times") or []
    for number, ((asked, answered), text) in enumerate(zip(times, episode.messages, strict=False)):
        chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": episode.cell.model}
        chat["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "content": text}])
        span = _id(f"{name} chat {number}", 8)
        label = f"chat {episode.cell.model}"
        yield _span(trace, span, root, label, start + asked, start + answered, chat, _CLIENT)
        action = classify(text)
        if action.kind == "execute":
            until = times[number + 1][0] if number + 1 < len(times) else end - start
            tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "python"}
            tool["gen_ai.tool.call.arguments"] = action.content
            span, label = _id(f"{name} tool {number}", 8), "execute_tool python"
            yield _span(trace, span, root, label, start + answered, start + until, tool, _INTERNAL)


def _span(
    trace: str,
    span: str,
    parent: str,
    name: str,
    start: float,
    end: float,
    attributes: dict[str, Any],
    kind: int,
    status: int | None = None,
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": trace,
        "spanId": span,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(round(start * 1e9)),
        "endTimeUnixNano": str(round(end * 1e9)),
        "attributes": _attributes(attributes),
    }
    if parent:
        made["parentSpanId"] = parent
    if status is not None:
        made["status"] = {"code": status}
    return made


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}


def _id(text: str, size: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * size]
