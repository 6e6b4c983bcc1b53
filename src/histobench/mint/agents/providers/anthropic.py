"""The messages format of Anthropic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from histobench.mint.agents.completion import Completion, MalformedAnswerError, Sampling, Usage
from histobench.mint.agents.providers.base import Capabilities, ProviderAPI, Request, turns
from histobench.mint.envs.state import Message

VERSION = "2023-06-01"


@dataclass(frozen=True)
class AnthropicAPI(ProviderAPI):
    """`base_url` ends with the version, as in https://api.anthropic.com/v1."""

    def request(self, messages: Sequence[Message], sampling: Sampling, capabilities: Capabilities) -> Request:
        """A message."""
        pairs = turns(messages, Capabilities(capabilities.without, merge_roles=True))
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "messages": [{"role": role, "content": text} for role, text in pairs],
        }
        if "temperature" not in capabilities.without:
            body["temperature"] = sampling.temperature
        if sampling.stop and "stop" not in capabilities.without:
            body["stop_sequences"] = list(sampling.stop)
        headers = {"anthropic-version": VERSION}
        if self.api_key:
            headers["x-api-key"] = self.api_key
        return Request(f"{self.base_url.rstrip('/')}/messages", body, headers)

    def completion(self, payload: Mapping[str, Any]) -> Completion:
        """All blocks of text, joined."""
        blocks = payload.get("content")
        if not isinstance(blocks, list) or payload.get("type", "message") != "message":
            raise MalformedAnswerError("no content in the answer")
        try:
            text = "".join(block["text"] for block in blocks if block["type"] == "text")
        except (KeyError, TypeError) as error:
            raise MalformedAnswerError(f"a block without text ({error!r})") from error
        return Completion(text, _usage(payload.get("usage")), payload.get("stop_reason"))


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, Mapping):
        return Usage(known=False)
    read = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return Usage.reported([usage.get(name) or 0 for name in read], [usage.get("output_tokens")])
