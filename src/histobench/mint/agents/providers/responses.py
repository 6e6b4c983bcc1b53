"""The Responses format of OpenAI: reasoning comes encrypted and goes back as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from histobench.core.redaction import joined
from histobench.mint.agents.completion import Completion, MalformedAnswerError, Usage
from histobench.mint.agents.providers.provider import (
    Capabilities,
    ProviderAPI,
    Question,
    Request,
    completion_of,
    openai_usage,
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


@dataclass(frozen=True)
class ResponsesAPI(ProviderAPI):
    """`base_url` ends with the version, as in https://api.openai.com/v1. The provider stores nothing."""

    format: ClassVar[str] = "responses"

    def request(self, question: Question, capabilities: Capabilities) -> Request:
        sampling = question.sampling
        items: list[dict[str, Any]] = []
        for message in question.turns(merge_roles=False):
            items += self._items(message)
        body: dict[str, Any] = {"model": self.model, "input": items, "store": False}
        body["max_output_tokens"] = sampling.max_tokens
        body |= sampling.sent(capabilities.without, temperature="temperature", top_p="top_p")
        if "include" not in capabilities.without:
            body["include"] = ["reasoning.encrypted_content"]
        if sampling.reasoning_effort and "reasoning_effort" not in capabilities.without:
            body["reasoning"] = {"effort": sampling.reasoning_effort}
        if question.functions:
            # Not strict: that mode wants every argument to be required, which those of tools need not be.
            body["tools"] = [
                {"type": "function", **asdict(spec), "strict": False} for spec in question.functions
            ]
            if sampling.demands_call(capabilities.without):
                body["tool_choice"] = "required"
        return Request(joined(self.base_url, "responses"), body, self.bearer)

    def usage(self, payload: Mapping[str, Any]) -> Usage:
        return openai_usage(payload.get("usage"), "input_tokens", "output_tokens")

    def read(self, payload: Mapping[str, Any]) -> Completion:
        output = payload.get("output")
        if not isinstance(output, list):
            raise MalformedAnswerError("no output in the answer")
        finish = (payload.get("incomplete_details") or {}).get("reason") or payload.get("status")
        if finish in ("failed", "cancelled"):
            raise MalformedAnswerError(f"the provider withheld the answer ({finish})")
        parts = [part for item in output for part in self._parts(item)]
        return completion_of(parts, self.usage(payload), finish)

    def _parts(self, item: Mapping[str, Any]) -> list[Part]:
        origin = self.origin(dict(item))
        match item["type"]:
            case "message":
                return [self._spoken(piece, item) for piece in item["content"]]
            case "function_call":
                return [ToolCall.parse(item["call_id"], item["name"], item.get("arguments") or "", origin)]
            case "reasoning":
                pieces = [*(item.get("summary") or ()), *(item.get("content") or ())]
                return [Reasoning("\n".join(piece["text"] for piece in pieces), origin)]
            case _:
                return [Unknown(origin)]

    def _spoken(self, piece: Mapping[str, Any], item: Mapping[str, Any]) -> Part:
        match piece["type"]:
            case "output_text":
                return Text(piece["text"])
            case "refusal":
                return Refusal(piece["refusal"])
            case _:
                return Unknown(self.origin({**item, "content": [dict(piece)]}))

    def _items(self, message: Message) -> list[dict[str, Any]]:
        """Each call, result and piece of reasoning is an item; words and pictures between them are one."""
        if not message.parts:
            return [{"role": message.role, "content": message.content}]
        items: list[dict[str, Any]] = []
        pieces: list[dict[str, Any]] = []
        for part in message.parts:
            piece = self._piece(part, message.role)
            if piece is not None:
                pieces.append(piece)
                continue
            if pieces:
                items.append({"role": message.role, "content": pieces})
                pieces = []
            own = self.own(part)
            if isinstance(part, ToolResult):
                items.append(_output(part))
            elif own is not None:
                items.append(own)
            elif isinstance(part, ToolCall):
                call = {"call_id": part.id, "name": part.name, "arguments": part.arguments_text}
                items.append({"type": "function_call", **call})
        return [*items, {"role": message.role, "content": pieces}] if pieces else items

    def _piece(self, part: Part, role: str) -> dict[str, Any] | None:
        match part:
            case Text(text=text):
                return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
            case Refusal(text=text):
                return {"type": "refusal", "refusal": text}
            case Image():
                return {"type": "input_image", "image_url": part.url}
            case _:
                return None


def _output(result: ToolResult) -> dict[str, Any]:
    pictures = [{"type": "input_image", "image_url": image.url} for image in result.images]
    shown = [{"type": "input_text", "text": result.text}, *pictures] if pictures else result.text
    return {"type": "function_call_output", "call_id": result.call_id, "output": shown}
