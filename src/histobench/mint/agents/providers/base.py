"""How a provider is spoken to: the shape of a request and of an answer, without any network."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from histobench.mint.agents.completion import Completion, Sampling, whole_characters
from histobench.mint.envs.state import Message

#: How providers say that a conversation is longer than the model can read.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (length|window|size)|"
    r"longer than the maximum|prompt is too long|input is too long|too many (input )?tokens|"
    r"input token count .* exceeds|exceeds? the (maximum|context|available context)|string_above_max_length",
    re.IGNORECASE | re.DOTALL,
)
_UNSUPPORTED = re.compile(r"unsupported|not supported|unrecognized|unknown (parameter|name)", re.IGNORECASE)
_ROLES = re.compile(r"roles must alternate|alternate user/assistant", re.IGNORECASE)


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
        """The capabilities that answers a complaint, or `None` if it is about something else.

        >>> Capabilities().learnt("Unsupported parameter: 'stop' is not supported with this model.").without
        frozenset({'stop'})
        """
        if _ROLES.search(complaint) and not self.merge_roles:
            return Capabilities(self.without, True)
        if _UNSUPPORTED.search(complaint):
            for name in ("max_tokens", "stop", "temperature"):
                if name not in self.without and re.search(rf"['\"`]?\b{name}\b", complaint):
                    return Capabilities(self.without | {name}, self.merge_roles)
        return None


@dataclass(frozen=True)
class ProviderAPI(ABC):
    """One provider's format. `base_url` ends with the version of the interface."""

    model: str
    base_url: str = field(repr=False)  # may hold a password
    api_key: str | None = field(default=None, repr=False)

    @abstractmethod
    def request(self, messages: Sequence[Message], sampling: Sampling, capabilities: Capabilities) -> Request:
        """The request for the next message of a conversation."""

    @abstractmethod
    def completion(self, payload: Mapping[str, Any]) -> Completion:
        """The answer in a response; raises `MalformedAnswerError`."""


def is_too_long(status: int, text: str) -> bool:
    """Whether an error response says that the conversation does not fit.

    >>> is_too_long(400, '{"error": {"code": "context_length_exceeded"}}')
    True
    >>> is_too_long(500, "maximum context length")
    False
    """
    return status in (400, 413, 422) and bool(_TOO_LONG.search(text))


def turns(messages: Sequence[Message], capabilities: Capabilities) -> list[tuple[str, str]]:
    """(role, text) pairs; neighbours of one role become one where the server insists on alternation."""
    pairs: list[tuple[str, str]] = []
    for message in messages:
        content = whole_characters(message.content)  # a task or a tool may hold half a pair, too
        if capabilities.merge_roles and pairs and pairs[-1][0] == message.role:
            pairs[-1] = (message.role, f"{pairs[-1][1]}\n{content}")
        else:
            pairs.append((message.role, content))
    return pairs
