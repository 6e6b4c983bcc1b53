"""The chat-completions format: OpenAI, vLLM, Ollama, llama.cpp and most others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from histobench.mint.agents.completion import Completion, MalformedAnswerError, Sampling, Usage
from histobench.mint.agents.providers.base import Capabilities, ProviderAPI, Request, turns
from histobench.mint.envs.state import Message


@dataclass(frozen=True)
class ChatCompletionsAPI(ProviderAPI):
    """`base_url` ends with the version, as in http://localhost:8000/v1."""

    def request(self, messages: Sequence[Message], sampling: Sampling, capabilities: Capabilities) -> Request:
        """A chat completion."""
        pairs = turns(messages, capabilities)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": role, "content": text} for role, text in pairs],
        }
        limit = "max_completion_tokens" if "max_tokens" in capabilities.without else "max_tokens"
        body[limit] = sampling.max_tokens
        if "temperature" not in capabilities.without:
            body["temperature"] = sampling.temperature
        if sampling.stop and "stop" not in capabilities.without:
            body["stop"] = list(sampling.stop)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return Request(f"{self.base_url.rstrip('/')}/chat/completions", body, headers)

    def completion(self, payload: Mapping[str, Any]) -> Completion:
        """The first choice."""
        try:
            choice = payload["choices"][0]
            content = choice["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise MalformedAnswerError(f"no message in the answer ({error!r})") from error
        finish = choice.get("finish_reason")
        if finish in ("content_filter", "error"):
            raise MalformedAnswerError(f"the provider withheld the answer ({finish})")
        if content is None and finish in ("stop", "length"):
            content = ""  # all tokens went into reasoning that is not shown
        if not isinstance(content, str):
            raise MalformedAnswerError(f"the text of the answer is {type(content).__name__}")
        return Completion(content, _usage(payload.get("usage")), finish)


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, Mapping):
        return Usage(known=False)
    return Usage.reported([usage.get("prompt_tokens")], [usage.get("completion_tokens")])
