"""One answer of a model, what it cost in tokens, and how a provider can fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
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
    """The provider gave no answer although it was asked again and again. Never the model's failure."""

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class MalformedAnswerError(Exception):
    """What came back is not an answer: no JSON, a page of HTML, no text in it."""


def whole_characters(text: str) -> str:
    """The text with every half of a surrogate pair replaced: no request and no file can carry one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True)
class Usage:
    """Tokens as the provider counts them. `known` is false when it did not say for some call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    known: bool = True
    cached_tokens: int = field(default=0, compare=False)
    cache_writes: int = field(default=0, compare=False)
    reasoning_tokens: int = field(default=0, compare=False)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        sums = {name: count + vars(other)[name] for name, count in vars(self).items()}
        return Usage(**{**sums, "known": self.known and other.known})

    @classmethod
    def reported(cls, read: Iterable[Any], written: Iterable[Any], **among: Any) -> Usage:
        stated = [list(read), list(written)]
        if not all(type(count) is int and 0 <= count <= _MOST_TOKENS for side in stated for count in side):
            return cls(known=False)
        counts: dict[str, Any] = {
            name: count for name, count in among.items() if type(count) is int and count > 0
        }
        usage = cls(sum(stated[0]), sum(stated[1]), **counts)
        fits = usage.reasoning_tokens <= usage.completion_tokens
        fits = fits and usage.cached_tokens + usage.cache_writes <= usage.prompt_tokens
        return usage if fits else cls(usage.prompt_tokens, usage.completion_tokens)

    def as_published(self, prefix: str = "") -> dict[str, int]:
        return {
            f"{prefix}prompt_tokens": self.prompt_tokens,
            f"{prefix}completion_tokens": self.completion_tokens,
            f"{prefix}total_tokens": self.total_tokens,
        }


@dataclass(frozen=True)
class Receipt:
    """What was really sent and who answered; with the conversation, enough to build the request again."""

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
    """The text of an answer. `cached`: it was read from disk and cost nothing now."""

    text: str
    usage: Usage = Usage()
    finish: str | None = None
    cached: bool = False
    discarded: Usage = Usage()
    parts: tuple[Part, ...] = ()
    receipt: Receipt | None = None

    @property
    def message(self) -> Message:
        return Message("assistant", self.text, self.parts, self.ending)

    @property
    def ending(self) -> Ending:
        """How it ended: as usual (""), cut off at the limit, withheld by a filter, or by a refusal."""
        word = (self.finish or "").partition(":")[0].lower()
        return _ENDINGS.get(word, "refusal" if any(isinstance(part, Refusal) for part in self.parts) else "")

    def turn_record(self, cost: float | None) -> dict[str, Any]:
        """A turn of `details.jsonl`: the receipt, how the answer ended, its tokens by class and its cost."""
        receipt = asdict(self.receipt) if self.receipt else {}
        record = {name: value for name, value in receipt.items() if value not in (None, (), {}, False)}
        record |= {"finish": self.finish, "cost": cost}
        if self.ending:
            record["ending"] = self.ending
        if self.cached:
            record["cached"] = True
        record["usage"] = asdict(self.usage)
        if self.discarded.total_tokens:
            record["discarded"] = asdict(self.discarded)
        return record

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all came: no words, no call, and no sign of reasoning either."""
        withheld = self.ending in ("filtered", "refusal")
        said = withheld or any(not isinstance(part, Text) for part in self.parts)
        return not self.text.strip() and not said and not self.usage.reasoning_tokens


@dataclass(frozen=True)
class Sampling:
    """How the model writes: the published defaults are greedy decoding and 512 tokens."""

    temperature: float = 0.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    reasoning_history: ReasoningHistory = "provider"
    grammar: str | None = None
    last_grammar: str | None = None
    must_call: bool = False

    def cut(self, text: str) -> str:
        """The text up to the first stop sequence; for servers that ignore some of them."""
        ends = [text.find(stop) for stop in self.stop]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    def as_key(self) -> dict[str, Any]:
        key: dict[str, Any] = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**key, "stop": list(self.stop), **self.extras()}

    def extras(self) -> dict[str, Any]:
        extras = {name: getattr(self, name) for name in ("top_p", "seed", "reasoning_effort", "grammar")}
        if self.reasoning_history != "provider":
            extras["reasoning_history"] = self.reasoning_history
        if self.must_call:
            extras["must_call"] = True
        return {name: value for name, value in extras.items() if value is not None}

    def demands_call(self, without: frozenset[str]) -> bool:
        return self.must_call and "tool_choice" not in without

    def sent(self, without: frozenset[str], **names: str) -> dict[str, Any]:
        """The parameters of a request, under the names of a provider; one without a name is not offered."""
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
