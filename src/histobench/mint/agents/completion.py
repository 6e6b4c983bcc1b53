"""One answer of a model, what it cost in tokens, and how a provider can fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from histobench.mint.messages.parts import Ending, Message, Part, Refusal, Text

#: Why an answer ended, as providers call it -> what that means here; every other word is a usual end.
_ENDINGS: dict[str, Ending] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "content_filter": "filtered",
    "safety": "filtered",
    "recitation": "filtered",
    "blocklist": "filtered",
    "prohibited_content": "filtered",
    "spii": "filtered",
    "image_safety": "filtered",
}
#: A server that reports more for one answer has miscounted.
_MOST_TOKENS = 10**12
#: The `finish` of an answer that was withheld before or while it was written; the provider's word follows.
FILTERED = "content_filter"

#: What goes back of a model's reasoning: what its provider documents, nothing, or all that can be sent.
ReasoningHistory = Literal["provider", "none", "all"]


class ProviderError(Exception):
    """The provider gave no answer although it was asked again and again. Never the model's failure.

    `hopeless`: asking for any other episode would fail in the same way (a wrong key, no such model).
    """

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class MalformedAnswerError(Exception):
    """What came back is not an answer: no JSON, a page of HTML, no text in it."""


def whole_characters(text: str) -> str:
    """The text with every half of a surrogate pair replaced: no request and no file can carry one.

    >>> whole_characters("4 \\ud83d\\ude00 \\ud800") == "4 \\U0001f600 \\ufffd"
    True
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True)
class Usage:
    """Tokens as the provider counts them. `known` is false when it did not say for some call.

    `cached_tokens` (read from the provider's cache) and `cache_writes` are among the prompt's,
    `reasoning_tokens` among the completion's; 0 where the provider does not tell.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    known: bool = True
    cached_tokens: int = field(default=0, compare=False)
    cache_writes: int = field(default=0, compare=False)
    reasoning_tokens: int = field(default=0, compare=False)

    @property
    def total_tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.known and other.known,
            self.cached_tokens + other.cached_tokens,
            self.cache_writes + other.cache_writes,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @classmethod
    def reported(cls, read: Iterable[Any], written: Iterable[Any], **among: Any) -> Usage:
        """The sums of what an answer states; unknown where that is no number of tokens.

        >>> Usage.reported([10, 5], [3], cached_tokens=4).cached_tokens
        4
        >>> Usage.reported([float("inf")], [None]).known
        False
        """
        stated = [list(read), list(written)]
        try:
            counts = [[int(count) for count in side] for side in stated]
        except (TypeError, ValueError, OverflowError):
            return cls(known=False)
        is_bool = any(isinstance(count, bool) for side in stated for count in side)
        if is_bool or not all(0 <= count <= _MOST_TOKENS for side in counts for count in side):
            return cls(known=False)
        read_tokens, written_tokens = sum(counts[0]), sum(counts[1])
        most = {"cached_tokens": read_tokens, "cache_writes": read_tokens, "reasoning_tokens": written_tokens}
        token_counts = {
            name: count for name, count in among.items() if isinstance(count, int) and 0 < count <= most[name]
        }
        if sum(token_counts.get(name, 0) for name in ("cached_tokens", "cache_writes")) > read_tokens:
            token_counts = {}
        usage: Usage = replace(cls(read_tokens, written_tokens), **token_counts)  # type: ignore[arg-type]
        return usage

    def as_published(self, prefix: str = "") -> dict[str, int]:
        """The keys of `token_counter` in `results.jsonl`."""
        return {
            f"{prefix}prompt_tokens": self.prompt_tokens,
            f"{prefix}completion_tokens": self.completion_tokens,
            f"{prefix}total_tokens": self.total_tokens,
        }


@dataclass(frozen=True)
class Receipt:
    """What was really sent and who answered; with the conversation, enough to build the request again.

    `sent` are the parameters of the request as they went out (a parameter that the server refused is not
    among them); `without` and `merge_roles` are what the server was known not to understand. `sha256` is that
    of the request's body. `retries` counts failed, refused and empty attempts before this answer.
    """

    format: str
    url: str  # without credentials
    asked_model: str
    sha256: str
    sent: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    merge_roles: bool = False
    model: str | None = None
    id: str | None = None
    fingerprint: str | None = None
    retries: int = 0
    seconds: float = 0.0
    problem: str | None = None


@dataclass(frozen=True)
class Completion:
    """The text of an answer. `cached`: it was read from disk and cost nothing now.

    `parts` are given where there is more to it than text. `discarded` are the tokens of empty answers to the
    same question: paid for, no part of the conversation.
    """

    text: str
    usage: Usage = Usage()
    finish: str | None = None
    cached: bool = False
    discarded: Usage = Usage()
    parts: tuple[Part, ...] = ()
    receipt: Receipt | None = None

    @property
    def message(self) -> Message:
        """The answer as an entry of the conversation."""
        return Message("assistant", self.text, self.parts, self.ending)

    @property
    def ending(self) -> Ending:
        """How it ended: as usual (""), cut off at the limit, withheld by a filter, or by a refusal.

        >>> Completion("", finish="content_filter:SAFETY").ending, Completion("4", finish="stop").ending
        ('filtered', '')
        """
        word = (self.finish or "").partition(":")[0].lower()
        refused = any(isinstance(part, Refusal) for part in self.parts)
        return _ENDINGS.get(word, "refusal" if refused else "")

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all came: no words, no call, and no sign of reasoning either."""
        withheld = self.ending in ("filtered", "refusal")
        said = withheld or any(not isinstance(part, Text) for part in self.parts)
        return not self.text.strip() and not said and not self.usage.reasoning_tokens


@dataclass(frozen=True)
class Sampling:
    """How the model writes: the published defaults are greedy decoding and 512 tokens.

    With a `reasoning_effort` neither temperature nor stop sequences are sent: reasoning models refuse both.
    `grammar` is GBNF, for servers of llama.cpp. With `must_call` every answer has to call a function, if the
    provider can see to that.
    """

    temperature: float = 0.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    reasoning_history: ReasoningHistory = "provider"
    grammar: str | None = None
    #: The grammar of an episode's last step.
    last_grammar: str | None = None
    must_call: bool = False

    def cut(self, text: str) -> str:
        """The text up to the first stop sequence; for servers that ignore some of them.

        >>> Sampling(stop=("\\nTask:",)).cut("4\\nTask: another")
        '4'
        """
        ends = [text.find(stop) for stop in self.stop]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    def as_key(self) -> dict[str, Any]:
        """What distinguishes two requests."""
        key: dict[str, Any] = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**key, "stop": list(self.stop), **self.extras()}

    def extras(self) -> dict[str, Any]:
        """What differs from the published way to ask."""
        extras = {name: getattr(self, name) for name in ("top_p", "seed", "reasoning_effort", "grammar")}
        if self.reasoning_history != "provider":
            extras["reasoning_history"] = self.reasoning_history
        if self.must_call:
            extras["must_call"] = True
        return {name: value for name, value in extras.items() if value is not None}

    def demands_call(self, without: frozenset[str]) -> bool:
        """Whether the provider is asked that a function must be called."""
        return self.must_call and "tool_choice" not in without

    def sent(self, without: frozenset[str], **names: str) -> dict[str, Any]:
        """The parameters of a request, under the names of a provider; one without a name is not offered.

        >>> Sampling(stop=("\\n",)).sent(frozenset({"stop"}), temperature="temperature", stop="stop")
        {'temperature': 0.0}
        """
        values: Mapping[str, Any] = {
            "temperature": None if self.reasoning_effort else self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": None if self.reasoning_effort or not self.stop else list(self.stop),
            "reasoning_effort": self.reasoning_effort,
            "grammar": self.grammar,
        }
        offered = {names[name]: value for name, value in values.items() if name in names}
        refused = {names[name] for name in without if name in names}
        return {name: value for name, value in offered.items() if value is not None and name not in refused}
