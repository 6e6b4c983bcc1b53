"""Whole runs in the format of each provider, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_sandbox")]


def anthropic(body: dict[str, Any], text: str) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {"type": "message", "content": [{"type": "text", "text": text}], "usage": usage}


def gemini(body: dict[str, Any], text: str) -> dict[str, Any]:
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A request of any of the formats as the script reads it."""
    if "contents" not in body:
        return body
    names = {"user": "user", "model": "assistant"}
    return {
        "messages": [
            {"role": names[entry["role"]], "content": entry["parts"][0]["text"]} for entry in body["contents"]
        ]
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "shape", "path", "header"),
    [
        ("anthropic", anthropic, "/v1/messages", "x-api-key"),
        ("gemini", gemini, "/v1/models/some-model:generateContent", "x-goog-api-key"),
        ("vllm", None, "/v1/chat/completions", "authorization"),
    ],
)
def test_every_format_gives_the_same_episodes(
    tmp_path: Path,
    make_data: Callable[[int], Path],
    server: Any,
    replies: Any,
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    shape: Callable[[dict[str, Any], str], dict[str, Any]] | None,
    path: str,
    header: str,
) -> None:
    monkeypatch.setenv("HISTOBENCH_API_KEY", "my-own-key")
    data = ["--tasks", "gsm8k", "--data", str(make_data(8))]
    server.answer = lambda body, number: replies.chat(script.answer(body))
    agent = ["--agent", f"openai:some-model@{server.url}"]
    assert main(["mint", "run", *agent, *data, "-o", str(tmp_path / "openai")]) == 0
    asked = len(server.requests)

    def answer(body: dict[str, Any], number: int) -> Any:
        text = script.answer(as_chat(body))
        return replies.chat(text) if shape is None else replies.Reply(shape(body, text))

    server.answer = answer
    agent = ["--agent", f"{kind}:some-model@{server.url}"]
    assert main(["mint", "run", *agent, *data, "-o", str(tmp_path / kind)]) == 0
    assert script.totals(tmp_path / kind) == script.totals(tmp_path / "openai")
    assert set(server.paths[asked:]) == {path}
    assert all("my-own-key" in headers[header] for headers in server.headers[asked:])
