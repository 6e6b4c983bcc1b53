"""The generateContent format of Gemini."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from histobench.mint.agents.completion import Completion, MalformedAnswerError, Sampling, Usage
from histobench.mint.agents.providers.base import Capabilities, ProviderAPI, Request, turns
from histobench.mint.envs.state import Message

#: The model ended the text itself; every other reason is the provider's.
_OWN_ENDINGS = (None, "STOP", "MAX_TOKENS")
#: At most five stop sequences are taken.
_MAX_STOPS = 5


@dataclass(frozen=True)
class GeminiAPI(ProviderAPI):
    """`base_url` ends with the version, as in https://generativelanguage.googleapis.com/v1beta."""

    def request(self, messages: Sequence[Message], sampling: Sampling, capabilities: Capabilities) -> Request:
        """Content for the conversation so far."""
        generation: dict[str, Any] = {"maxOutputTokens": sampling.max_tokens}
        if "temperature" not in capabilities.without:
            generation["temperature"] = sampling.temperature
        if sampling.stop and "stop" not in capabilities.without:
            generation["stopSequences"] = list(sampling.stop[:_MAX_STOPS])
        contents = [
            {"role": "model" if role == "assistant" else "user", "parts": [{"text": text}]}
            for role, text in turns(messages, capabilities)
        ]
        headers = {"x-goog-api-key": self.api_key} if self.api_key else {}
        url = f"{self.base_url.rstrip('/')}/models/{self.model}:generateContent"
        return Request(url, {"contents": contents, "generationConfig": generation}, headers)

    def completion(self, payload: Mapping[str, Any]) -> Completion:
        """All parts of the first candidate that are not thoughts."""
        candidates = payload.get("candidates")
        if not isinstance(candidates, list) or not candidates:
            raise MalformedAnswerError(f"no candidate in the answer ({payload.get('promptFeedback')})")
        try:
            finish = candidates[0].get("finishReason")
            if finish not in _OWN_ENDINGS:
                raise MalformedAnswerError(f"the provider withheld the answer ({finish})")
            parts = candidates[0].get("content", {}).get("parts", [])
            text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        except (AttributeError, TypeError) as error:
            raise MalformedAnswerError(f"not a candidate ({error!r})") from error
        return Completion(text, _usage(payload.get("usageMetadata")), finish)


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, Mapping):
        return Usage(known=False)
    written = [usage.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    return Usage.reported([usage.get("promptTokenCount")], written)
