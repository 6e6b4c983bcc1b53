"""The messages format of Anthropic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from histobench.core.redaction import joined
from histobench.mint.agents.completion import Completion, MalformedAnswerError, Sampling, Usage
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

VERSION = "2023-06-01"
#: Tokens to think with, for models that take a budget and no effort; added to the limit of an answer.
BUDGETS = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16384}


@dataclass(frozen=True)
class AnthropicAPI(ProviderAPI):
    """`base_url` ends with the version, as in https://api.anthropic.com/v1."""

    format: ClassVar[str] = "anthropic"

    def request(self, question: Question, capabilities: Capabilities) -> Request:
        sampling = question.sampling
        sent = question.turns(merge_roles=True)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "messages": [
                {"role": message.role, "content": content}
                for message in sent
                if message.role != "system" and (content := self._content(message))
            ],
        }
        if system := [message.content for message in sent if message.role == "system"]:
            body["system"] = "\n".join(system)
        names = {"temperature": "temperature", "top_p": "top_p", "stop": "stop_sequences"}
        body |= sampling.sent(capabilities.without, **names)
        if sampling.reasoning_effort and "reasoning_effort" not in capabilities.without:
            body |= _thinking(sampling, adaptive="adaptive" not in capabilities.without)
        if question.functions:
            body["tools"] = [spec.named("input_schema") for spec in question.functions]
            # A model that thinks cannot be made to call.
            if sampling.demands_call(capabilities.without) and not sampling.reasoning_effort:
                body["tool_choice"] = {"type": "any"}
        headers = {"anthropic-version": VERSION}
        if self.api_key:
            headers["x-api-key"] = self.api_key
        return Request(joined(self.base_url, "messages"), body, headers)

    def usage(self, payload: Mapping[str, Any]) -> Usage:
        usage = payload.get("usage")
        if not isinstance(usage, Mapping):
            return Usage(known=False)
        read = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        return Usage.reported(
            [usage.get(name) or 0 for name in read],
            [usage.get("output_tokens")],
            cached_tokens=usage.get("cache_read_input_tokens"),
            cache_writes=usage.get("cache_creation_input_tokens"),
        )

    def read(self, payload: Mapping[str, Any]) -> Completion:
        blocks = payload.get("content")
        if not isinstance(blocks, list) or payload.get("type", "message") != "message":
            raise MalformedAnswerError("no content in the answer")
        parts = [self._part(block) for block in blocks]
        finish = payload.get("stop_reason")
        if finish == "refusal":
            parts = [Refusal(part.text) if isinstance(part, Text) else part for part in parts]
            if not any(isinstance(part, Refusal) for part in parts):
                parts.append(Refusal(""))  # it said nothing, and nothing goes back in its name
        return completion_of(parts, self.usage(payload), finish)

    def _part(self, block: Mapping[str, Any]) -> Part:
        origin = self.origin(dict(block))
        match block["type"]:
            case "text":
                return Text(block["text"])
            case "tool_use":
                arguments = block["input"] if isinstance(block["input"], dict) else None
                return ToolCall(block["id"], block["name"], arguments, origin=origin)
            case "thinking":
                return Reasoning(block["thinking"], origin)
            case "redacted_thinking":
                return Reasoning("", origin)
            case _:
                return Unknown(origin)

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        if not message.parts:
            return message.content
        return [block for part in message.parts if (block := self._block(part)) is not None]

    def _block(self, part: Part) -> dict[str, Any] | None:
        """Thinking goes back as it came: signed, and wanted beside the calls that it led to."""
        own = self.own(part)
        if own is not None:
            return dict(own)
        match part:
            case Text(text=text) | Refusal(text=text):
                return {"type": "text", "text": text} if text.strip() else None
            case Image():
                return _picture(part)
            case ToolCall():
                return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments or {}}
            case ToolResult():
                content = [{"type": "text", "text": part.text}] if part.text else []
                content += [_picture(image) for image in part.images]
                block = {"type": "tool_result", "tool_use_id": part.call_id, "content": content}
                return {**block, "is_error": True} if part.failed else block
            case _:
                return None


def _picture(image: Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": image.media_type, "data": image.base64}
    return {"type": "image", "source": source}


def _thinking(sampling: Sampling, *, adaptive: bool) -> dict[str, Any]:
    effort = sampling.reasoning_effort or ""
    if adaptive:
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    budget = BUDGETS.get(effort, BUDGETS["high"])
    thinking = {"type": "enabled", "budget_tokens": budget}
    return {"thinking": thinking, "max_tokens": sampling.max_tokens + budget}
