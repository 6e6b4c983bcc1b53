"""How a provider is spoken to: the shape of a request and of an answer, without any network."""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    Image,
    Message,
    MessageOrigin,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
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
_THINK = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)
_THINK_END = "</think>"


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
        """Tokens that the answer may take, in and out: about four characters are one."""
        return sum(len(message.content) for message in self.messages) / 4 + self.sampling.max_tokens


@dataclass(frozen=True)
class Request:
    """What is posted."""

    url: str = field(repr=False)
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # with the key


@dataclass(frozen=True)
class Capabilities:
    """What a server does not understand, learnt from its complaints.

    Newer hosted models refuse stop sequences or a temperature; some servers insist on alternating roles.
    """

    without: frozenset[str] = frozenset()
    merge_roles: bool = False

    def learnt(self, complaint: str) -> Capabilities | None:
        """The capabilities that answer a complaint, or `None` if it is about something else.

        >>> Capabilities().learnt("Unsupported parameter: 'stop' is not supported with this model.").without
        frozenset({'stop'})
        """
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
        """The answer in a response; raises `MalformedAnswerError` and nothing else."""
        try:
            completion = self.read(payload)
            _check_types(completion)
        except MalformedAnswerError:
            raise
        except Exception as error:  # a server may send anything
            raise MalformedAnswerError(f"the answer is not as documented ({error!r})") from error
        return completion

    @property
    def bearer(self) -> dict[str, str]:
        """The key as OpenAI's formats send it."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def own(self, part: Part) -> Any:
        """The part as this provider wrote it; None if another did, or no one."""
        origin = getattr(part, "origin", None)
        return origin.payload if isinstance(origin, MessageOrigin) and origin.format == self.format else None

    def origin(self, payload: Any) -> MessageOrigin:
        """Marks a part as this provider's."""
        return MessageOrigin(self.format, payload)


def is_too_long(status: int, text: str) -> bool:
    """Whether an error response says that the conversation does not fit.

    >>> is_too_long(400, '{"error": {"code": "context_length_exceeded"}}')
    True
    >>> is_too_long(500, "maximum context length")
    False
    """
    return status in (400, 413, 422) and bool(_TOO_LONG.search(text))


def is_filtered(status: int, text: str) -> bool:
    """Whether an error response says that a filter of the provider withheld the answer.

    >>> is_filtered(400, '{"error": {"code": "content_filter"}}'), is_filtered(400, "bad stop")
    (True, False)
    """
    return status in (400, 403, 422) and bool(_FILTERED.search(text))


def turns(
    messages: Sequence[Message], *, merge_roles: bool, history: ReasoningHistory = "provider"
) -> Iterator[Message]:
    """The messages as they can be sent: whole characters, no reasoning if none may go back, none empty.

    Neighbours of one role become one message where the server insists on alternation.
    """
    last: Message | None = None
    for message in messages:
        message = _sendable(message, history)
        said = [part for part in message.parts if not isinstance(part, Refusal) or part.text]
        if message.role == "assistant" and not message.content and not said:
            continue  # reasoning alone, which stays here, or a refusal without a word
        if last is not None and merge_roles and last.role == message.role:
            parts = (*last.as_parts, *message.as_parts) if last.parts or message.parts else ()
            last = Message(last.role, f"{last.content}\n{message.content}", parts)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, answer) of a text in which an open model wrote down both.

    >>> split_thinking("<think>2 + 2</think>\\n4"), split_thinking("2 + 2</think>4"), split_thinking("4")
    (('2 + 2', '4'), ('2 + 2', '4'), ('', '4'))
    """
    if (match := _THINK.match(text)) is not None:
        return match[1].strip(), text[match.end() :]
    if _THINK_END in text:  # the template of the model opened the block itself
        reasoning, _, answer = text.partition(_THINK_END)
        return reasoning.strip(), answer.lstrip()
    return "", text


def data_url(image: Image) -> str:
    """A picture inside an address."""
    return f"data:{image.media_type};base64,{base64_of(image)}"


def base64_of(image: Image) -> str:
    """A picture as text."""
    return base64.b64encode(image.data).decode()


def completion_of(parts: Sequence[Part], usage: Usage, finish: str | None) -> Completion:
    """An answer of these parts; one that is text alone is its text."""
    is_plain = all(isinstance(part, Text) and part.origin is None for part in parts)
    return Completion(spoken(parts), usage, finish, parts=() if is_plain else tuple(parts))


def openai_usage(usage: Any, read: str, written: str) -> Usage:
    """Tokens as OpenAI's formats state them, which differ in their words for `read` and `written`."""
    if not isinstance(usage, Mapping):
        return Usage(known=False)
    among_read, among_written = usage.get(f"{read}_details"), usage.get(f"{written}_details")
    return Usage.reported(
        [usage.get(read)],
        [usage.get(written)],
        cached_tokens=among_read.get("cached_tokens") if isinstance(among_read, Mapping) else None,
        reasoning_tokens=among_written.get("reasoning_tokens")
        if isinstance(among_written, Mapping)
        else None,
    )


def _check_types(completion: Completion) -> None:
    """Raise TypeError where a server sent another type than the one that is documented."""
    fields: list[Any] = [completion.text, completion.finish or ""]
    for part in completion.parts:
        match part:
            case Text(text=text) | Reasoning(text=text) | Refusal(text=text):
                fields.append(text)
            case ToolCall():
                fields += [part.id, part.name, part.written]
                if not isinstance(part.arguments, dict | None):
                    raise TypeError("the arguments of a call are not an object")
            case Image():
                fields.append(part.media_type)
    for value in fields:
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} instead of text")


def _sendable(message: Message, history: ReasoningHistory) -> Message:
    parts = message.parts
    if history == "none":
        parts = tuple(part for part in parts if not isinstance(part, Reasoning))
    if all(isinstance(part, Text) for part in parts):
        parts = ()
    return Message(message.role, whole_characters(message.content), parts)
