"""The chat-completions format: OpenAI, vLLM, Ollama, llama.cpp and most others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from histobench.core.redaction import joined
from histobench.mint.agents.completion import Completion, MalformedAnswerError, ReasoningHistory, Usage
from histobench.mint.agents.providers.provider import (
    Capabilities,
    ProviderAPI,
    Question,
    Request,
    completion_of,
    openai_usage,
    split_thinking,
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
    spoken,
)

#: Fields of an answer that hold its reasoning, by the server that writes them.
REASONING_FIELDS = ("reasoning_content", "reasoning")
#: Reasoning that has to go back as it came.
REASONING_DETAILS = "reasoning_details"
_WITHOUT_TEXT = ("stop", "length", "tool_calls", "content_filter")
_KNOWN_FIELDS = {"role", "content", "tool_calls", "refusal", REASONING_DETAILS, *REASONING_FIELDS}


@dataclass(frozen=True)
class ChatCompletionsAPI(ProviderAPI):
    """`base_url` ends with the version, as in http://localhost:8000/v1."""

    format: ClassVar[str] = "chat"

    def request(self, question: Question, capabilities: Capabilities) -> Request:
        sampling = question.sampling
        sent: list[dict[str, Any]] = []
        for message in question.turns(merge_roles=capabilities.merge_roles):
            sent += self._entries(message, sampling.reasoning_history)
        body: dict[str, Any] = {"model": self.model, "messages": sent}
        newer = "max_tokens" in capabilities.without or sampling.reasoning_effort
        body["max_completion_tokens" if newer else "max_tokens"] = sampling.max_tokens
        names = ("temperature", "top_p", "seed", "stop", "reasoning_effort", "grammar")
        body |= sampling.sent(capabilities.without, **{name: name for name in names})
        if question.functions:
            body["tools"] = [{"type": "function", "function": asdict(spec)} for spec in question.functions]
            if sampling.demands_call(capabilities.without):
                body["tool_choice"] = "required"
        return Request(joined(self.base_url, "chat/completions"), body, self.bearer)

    def usage(self, payload: Mapping[str, Any]) -> Usage:
        return openai_usage(payload.get("usage"), "prompt_tokens", "completion_tokens")

    def read(self, payload: Mapping[str, Any]) -> Completion:
        choice = payload["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content = message.get("content")
        if finish == "error":
            raise MalformedAnswerError(f"the provider withheld the answer ({finish})")
        if content is None:  # calls alone, all tokens went into reasoning, or a filter withheld it
            if not (message.get("tool_calls") or message.get("refusal") or finish in _WITHOUT_TEXT):
                raise MalformedAnswerError("no text in the answer")
            content = ""
        return completion_of(self._parts(message, content), self.usage(payload), finish)

    def _parts(self, message: Mapping[str, Any], content: str | list[Any]) -> list[Part]:
        parts: list[Part] = []
        if message.get(REASONING_DETAILS):
            details = message[REASONING_DETAILS]
            text = "".join(str(detail.get("text") or detail.get("summary") or "") for detail in details)
            parts.append(Reasoning(text, self.origin({REASONING_DETAILS: details})))
        else:
            for field in REASONING_FIELDS:
                if isinstance(thought := message.get(field), str) and thought:
                    parts.append(Reasoning(thought, self.origin({field: thought})))
                    break
        if isinstance(content, str):
            reasoning, answer = split_thinking(content)
            parts += [Reasoning(reasoning)] if reasoning else []
            parts += [Text(answer)] if answer else []
        else:
            parts += [self._content_part(item) for item in content]
        if message.get("refusal"):
            parts.append(Refusal(str(message["refusal"])))
        for position, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            id, origin = str(call.get("id") or f"call_{position}"), self.origin(call)
            written = function.get("arguments") or ""
            if isinstance(written, dict):  # some servers send an object
                parts.append(ToolCall(id, function["name"], written, origin=origin))
            else:
                parts.append(ToolCall.parse(id, function["name"], written, origin))
        others = {name: value for name, value in message.items() if name not in _KNOWN_FIELDS and value}
        return [*parts, Unknown(self.origin(others))] if others else parts

    def _content_part(self, item: Mapping[str, Any]) -> Part:
        match item.get("type"):
            case "text":
                return Text(item["text"])
            case "refusal":
                return Refusal(item["refusal"])
            case "thinking":  # written by servers of Mistral's models
                inner = item.get("thinking") or []
                text = inner if isinstance(inner, str) else "".join(piece.get("text", "") for piece in inner)
                return Reasoning(text, self.origin(dict(item)))
            case _:
                return Unknown(self.origin(dict(item)))

    def _entries(self, message: Message, history: ReasoningHistory) -> list[dict[str, Any]]:
        """A message of ours is one of theirs, but for results of tools: each of them is one."""
        if not message.parts:
            return [{"role": message.role, "content": message.content}]
        if message.role == "assistant":
            entry = self._assistant(message, history)
            return [entry] if any(entry[name] for name in entry if name != "role") else []
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        entries: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": result.call_id, "content": result.text} for result in results
        ]
        rest: list[Part] = []
        for result in results:  # no result of a tool can hold a picture in this format
            if result.images:
                rest += [Text(f"[What {result.name} shows:]"), *result.images]
        rest += [part for part in message.parts if not isinstance(part, ToolResult)]
        content = [piece for part in rest if (piece := self._piece(part)) is not None]
        if content:
            text_alone = len(content) == 1 and content[0].get("type") == "text"
            entries.append({"role": message.role, "content": content[0]["text"] if text_alone else content})
        return entries

    def _assistant(self, message: Message, history: ReasoningHistory) -> dict[str, Any]:
        entry: dict[str, Any] = {"role": "assistant"}
        text = spoken(message.parts)
        if message.calls:
            entry["tool_calls"] = [self._returned(call) for call in message.calls]
        entry["content"] = text or (None if message.calls else "")
        extra = [self.own(part) for part in message.parts if isinstance(part, Unknown) and self.own(part)]
        if pieces := [payload for payload in extra if "type" in payload]:
            entry["content"] = [*([{"type": "text", "text": text}] if text else []), *pieces]
        for part in message.parts:
            # Documented by those who write it: needed beside calls, useless or refused elsewhere.
            payload = self._reasoning(part) if isinstance(part, Reasoning) else {}
            if history == "all" or message.calls or REASONING_DETAILS in payload:
                entry |= payload
        return entry

    def _returned(self, call: ToolCall) -> dict[str, Any]:
        """A call in the conversation so far, as the model made it if its arguments are a JSON object."""
        if call.arguments is None:
            return _call(replace(call, arguments={"unreadable": call.written}, written=""))
        return (self.own(call) if call.written.strip() else None) or _call(call)

    def _reasoning(self, part: Reasoning) -> dict[str, Any]:
        """The fields that hold it; none for what stood in the text: templates of open models leave it out."""
        payload = self.own(part)
        return payload if isinstance(payload, dict) and "type" not in payload else {}

    def _piece(self, part: Part) -> dict[str, Any] | None:
        match part:
            case Text(text=text) | Refusal(text=text):
                return {"type": "text", "text": text}
            case Image():
                return {"type": "image_url", "image_url": {"url": part.url}}
            case Unknown():
                own = self.own(part)
                return own if isinstance(own, dict) and "type" in own else None
            case _:
                return None


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_text}
    return {"id": call.id, "type": "function", "function": function}
