"""How a provider is spoken to: the shape of a request and of an answer, without any network."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from histobench.mint.agents.completion import (
    Completion,
    MalformedAnswerError,
    ReasoningHistory,
    Sampling,
    Usage,
    whole_characters,
)
from histobench.mint.messages.parts import (
    Message,
    MessageOrigin,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolResult,
    ToolSpec,
    spoken,
)

#: How providers say that a conversation is longer than the model can read.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (length|window|size)|"
    r"longer than the maximum|prompt is too long|input is too long|too many (input )?tokens|"
    r"input token count .* exceeds|exceeds? the (maximum|context|available context)|string_above_max_length",
    re.IGNORECASE | re.DOTALL,
)
#: How providers say that a filter of theirs has withheld the answer.
_FILTERED = re.compile(
    r"content_filter|content management policy|responsibleaipolicyviolation|content_policy_violation|"
    r"content policy violation|blocked by .{0,40}safety|safety_violation|prohibited_content",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|not supported|unrecognized|unknown (parameter|name)|not permitted|does not support",
    re.IGNORECASE,
)
_ROLES = re.compile(r"roles must alternate|alternate user/assistant", re.IGNORECASE)
#: Parameters that some servers do not take -> how their complaints name them.
_OPTIONAL = {
    "max_tokens": r"max_tokens",
    "stop": r"stop",
    "temperature": r"temperature",
    "top_p": r"top_?p",
    "seed": r"seed",
    "adaptive": r"adaptive",
    "reasoning_effort": r"reasoning_effort|reasoning\.effort|thinking",
    "include": r"include|encrypted content",
    "parallel_tool_calls": r"parallel_tool_calls",
    "tool_choice": r"tool_choice|tool_config|function_?calling_?config",
}
_WORDS = ("text", "id", "name", "written", "media_type")
_THINK = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """What is asked, however often it takes; the model may call `functions`."""

    messages: Sequence[Message]
    sampling: Sampling
    functions: Sequence[ToolSpec] = ()
    deadline: float | None = None
    #: Dollars that one request can cost at most; None where the price is unknown.
    worst: float | None = None

    @property
    def estimate(self) -> float:
        return sum(len(message.content) for message in self.messages) / 4 + self.sampling.max_tokens

    def turns(self, *, merge_roles: bool) -> list[Message]:
        """The messages as they can be sent: whole characters, none empty, no reasoning if unwanted.

        Neighbours of one role become one message where the server insists on alternation.
        """
        sent: list[Message] = []
        for message in self.messages:
            message = _sendable(message, self.sampling.reasoning_history)
            said = [part for part in message.parts if not isinstance(part, Refusal) or part.text]
            if message.role == "assistant" and not message.content and not said:
                continue  # reasoning alone, which stays here, or a refusal without a word
            if sent and merge_roles and sent[-1].role == message.role:
                last = sent.pop()
                parts = (*last.as_parts, *message.as_parts) if last.parts or message.parts else ()
                message = Message(last.role, f"{last.content}\n{message.content}", parts)
            sent.append(message)
        return sent


@dataclass(frozen=True)
class Request:
    url: str = field(repr=False)
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # with the key

    @cached_property
    def content(self) -> bytes:
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Capabilities:
    """What a server does not understand, learnt from its complaints."""

    without: frozenset[str] = frozenset()
    merge_roles: bool = False

    def learnt(self, complaint: str) -> Capabilities | None:
        if _ROLES.search(complaint) and not self.merge_roles:
            return replace(self, merge_roles=True)
        if _UNSUPPORTED.search(complaint):
            for name, words in _OPTIONAL.items():
                if name not in self.without and re.search(rf"['\"`]?\b({words})\b", complaint, re.IGNORECASE):
                    return replace(self, without=self.without | {name})
        return None


@dataclass(frozen=True)
class ProviderAPI(ABC):
    """One provider's format. `base_url` ends with the version of the interface."""

    model: str
    base_url: str = field(repr=False)  # may hold a password
    api_key: str | None = field(default=None, repr=False)

    #: Tells whose own form a part is in (`Origin.format`).
    format: ClassVar[str]

    @abstractmethod
    def request(self, question: Question, capabilities: Capabilities) -> Request:
        """The request for the next message of a conversation."""

    @abstractmethod
    def usage(self, payload: Mapping[str, Any]) -> Usage:
        """The tokens that a response reports, also one without an answer."""

    @abstractmethod
    def read(self, payload: Mapping[str, Any]) -> Completion:
        """The answer in a response; what is not as documented may raise anything."""

    def completion(self, payload: Mapping[str, Any]) -> Completion:
        try:
            completion = self.read(payload)
            words = [getattr(part, name, "") for part in completion.parts for name in _WORDS]
            "".join([completion.finish or "", *words])  # a TypeError where one is not text
            if not all(isinstance(call.arguments, dict | None) for call in completion.message.calls):
                raise TypeError("the arguments of a call are not an object")
        except MalformedAnswerError:
            raise
        except Exception as error:  # a server may send anything
            raise MalformedAnswerError(f"the answer is not as documented ({error!r})") from error
        return completion

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def own(self, part: Part) -> Any:
        origin = getattr(part, "origin", None)
        return origin.payload if isinstance(origin, MessageOrigin) and origin.format == self.format else None

    def origin(self, payload: Any) -> MessageOrigin:
        return MessageOrigin(self.format, payload)


def is_too_long(status: int, text: str) -> bool:
    return status in (400, 413, 422) and bool(_TOO_LONG.search(text))


def is_filtered(status: int, text: str) -> bool:
    return status in (400, 403, 422) and bool(_FILTERED.search(text))


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, answer) of a text in which an open model wrote down both.

    >>> split_thinking("<think>2 + 2</think>\\n4"), split_thinking("2 + 2</think>4"), split_thinking("4")
    (('2 + 2', '4'), ('2 + 2', '4'), ('', '4'))
    """
    if match := _THINK.match(text):
        return match[1].strip(), text[match.end() :]
    reasoning, end, answer = text.partition("</think>")  # where the model's template opened the block itself
    return (reasoning.strip(), answer.lstrip()) if end else ("", text)


def completion_of(parts: Sequence[Part], usage: Usage, finish: str | None) -> Completion:
    is_plain = all(isinstance(part, Text) and part.origin is None for part in parts)
    return Completion(spoken(parts), usage, finish, parts=() if is_plain else tuple(parts))


def openai_usage(usage: Any, read: str, written: str) -> Usage:
    if not isinstance(usage, Mapping):
        return Usage(known=False)
    among = [usage.get(f"{side}_details") for side in (read, written)]
    among_read, among_written = (each if isinstance(each, Mapping) else {} for each in among)
    return Usage.reported(
        [usage.get(read)],
        [usage.get(written)],
        cached_tokens=among_read.get("cached_tokens"),
        reasoning_tokens=among_written.get("reasoning_tokens"),
    )


def _sendable(message: Message, history: ReasoningHistory) -> Message:
    parts = message.parts
    if history == "none":
        parts = tuple(part for part in parts if not isinstance(part, Reasoning))
    if all(isinstance(part, Text) for part in parts):
        parts = ()
    worded = Text | Refusal | Reasoning | ToolResult
    whole = (
        replace(part, text=whole_characters(part.text)) if isinstance(part, worded) else part
        for part in parts
    )
    return Message(message.role, whole_characters(message.content), tuple(whole))
