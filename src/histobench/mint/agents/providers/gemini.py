"""The generateContent format of Gemini."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from histobench.core.redaction import joined
from histobench.mint.agents.completion import FILTERED, Completion, MalformedAnswerError, Usage
from histobench.mint.agents.providers.provider import (
    Capabilities,
    ProviderAPI,
    Question,
    Request,
    completion_of,
)
from histobench.mint.messages.parts import (
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

_OWN_ENDINGS = (None, "STOP", "MAX_TOKENS", "MALFORMED_FUNCTION_CALL")
_FILTERS = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
_MAX_STOPS = 5
#: Models that take tokens to think with instead of a level, and how the provider translates levels for them.
_BUDGETED = re.compile(r"gemini-2\.5")
BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
SIGNATURE = "thoughtSignature"


@dataclass(frozen=True)
class GeminiAPI(ProviderAPI):
    """`base_url` ends with the version, as in https://generativelanguage.googleapis.com/v1beta."""

    format: ClassVar[str] = "gemini"

    def request(self, question: Question, capabilities: Capabilities) -> Request:
        sampling = question.sampling
        generation: dict[str, Any] = {"maxOutputTokens": sampling.max_tokens}
        names = {"temperature": "temperature", "top_p": "topP", "seed": "seed", "stop": "stopSequences"}
        generation |= sampling.sent(capabilities.without, **names)
        if "stopSequences" in generation:
            generation["stopSequences"] = generation["stopSequences"][:_MAX_STOPS]
        if sampling.reasoning_effort and "reasoning_effort" not in capabilities.without:
            generation["thinkingConfig"] = self._thinking(sampling.reasoning_effort)
        history = sampling.reasoning_history
        sent = question.turns(merge_roles=capabilities.merge_roles)
        contents = [
            {"role": "model" if message.role == "assistant" else "user", "parts": parts}
            for message in sent
            if message.role != "system" and (parts := self._content(message, thoughts=history == "all"))
        ]
        body: dict[str, Any] = {"contents": contents, "generationConfig": generation}
        if system := [{"text": message.content} for message in sent if message.role == "system"]:
            body["systemInstruction"] = {"parts": system}
        if question.functions:
            body["tools"] = [
                {"functionDeclarations": [spec.named("parametersJsonSchema") for spec in question.functions]}
            ]
            if sampling.demands_call(capabilities.without):
                body["toolConfig"] = {"functionCallingConfig": {"mode": "ANY"}}
        headers = {"x-goog-api-key": self.api_key} if self.api_key else {}
        return Request(joined(self.base_url, f"models/{self.model}:generateContent"), body, headers)

    def usage(self, payload: Mapping[str, Any]) -> Usage:
        usage = payload.get("usageMetadata")
        if not isinstance(usage, Mapping):
            return Usage(known=False)
        return Usage.reported(
            [usage.get("promptTokenCount")],
            [usage.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")],
            cached_tokens=usage.get("cachedContentTokenCount"),
            reasoning_tokens=usage.get("thoughtsTokenCount"),
        )

    def read(self, payload: Mapping[str, Any]) -> Completion:
        candidates, feedback = payload.get("candidates"), payload.get("promptFeedback")
        if not candidates and isinstance(feedback, Mapping) and feedback.get("blockReason"):
            return Completion("", self.usage(payload), f"{FILTERED}:{feedback['blockReason']}")
        if not isinstance(candidates, list) or not candidates:
            raise MalformedAnswerError(f"no candidate in the answer ({feedback})")
        finish = candidates[0].get("finishReason")
        if finish not in (*_OWN_ENDINGS, *_FILTERS):
            raise MalformedAnswerError(f"the provider withheld the answer ({finish})")
        content = candidates[0].get("content", {}).get("parts", [])
        parts = [self._part(part, position) for position, part in enumerate(content)]
        return completion_of(parts, self.usage(payload), finish)

    def _thinking(self, effort: str) -> dict[str, Any]:
        if _BUDGETED.search(self.model):
            return {"thinkingBudget": BUDGETS.get(effort, BUDGETS["high"]), "includeThoughts": True}
        return {"thinkingLevel": effort, "includeThoughts": True}

    def _part(self, part: Mapping[str, Any], position: int) -> Part:
        origin = self.origin(dict(part))
        if part.get("thought"):
            return Reasoning(part.get("text", ""), origin)
        if "functionCall" in part:
            call = part["functionCall"]
            id, arguments = call.get("id") or f"call_{position}", dict(call.get("args") or {})
            return ToolCall(id, call["name"], arguments, origin=origin)
        if "inlineData" in part and str(part["inlineData"].get("mimeType")).startswith("image/"):
            data = part["inlineData"]
            return Image(base64.b64decode(data["data"]), data["mimeType"], origin)
        if isinstance(part.get("text"), str):
            return Text(part["text"], origin if SIGNATURE in part else None)
        return Unknown(origin)

    def _content(self, message: Message, *, thoughts: bool) -> list[dict[str, Any]]:
        if not message.parts:
            return [{"text": message.content}]
        pieces: list[dict[str, Any]] = []
        for part in message.parts:
            # Summaries of thoughts stay here; their signatures go back, wherever they stand.
            if isinstance(part, Reasoning) and not thoughts and SIGNATURE not in (self.own(part) or {}):
                continue
            pieces += self._pieces(part)
        return pieces

    def _pieces(self, part: Part) -> list[dict[str, Any]]:
        own = self.own(part)
        if own is not None:
            return [dict(own)]
        match part:
            case Text(text=text) | Refusal(text=text):
                return [{"text": text}]
            case Image():
                return [_picture(part)]
            case ToolCall():
                return [{"functionCall": {"name": part.name, "args": part.arguments or {}}}]
            case ToolResult():
                word = "error" if part.failed else "result"
                response = {"name": part.name, "response": {word: part.text}}
                return [{"functionResponse": response}, *map(_picture, part.images)]
            case _:
                return []


def _picture(image: Image) -> dict[str, Any]:
    return {"inlineData": {"mimeType": image.media_type, "data": image.base64}}
