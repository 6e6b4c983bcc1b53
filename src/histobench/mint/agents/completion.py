"""One answer of a model, what it cost in tokens, and how a provider can fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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
    """Tokens as the provider counts them. `known` is false when it did not say for some call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    known: bool = True

    @property
    def total_tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.known and other.known,
        )

    @classmethod
    def reported(cls, read: Iterable[Any], written: Iterable[Any]) -> Usage:
        """The sums of what an answer states; unknown where that is no number of tokens.

        >>> Usage.reported([10, 5], [3]), Usage.reported([float("inf")], [None]).known
        (Usage(prompt_tokens=15, completion_tokens=3, known=True), False)
        """
        try:
            counts = [[int(count) for count in counts] for counts in (read, written)]
        except (TypeError, ValueError, OverflowError):
            return cls(known=False)
        if min(*counts[0], *counts[1]) < 0:
            return cls(known=False)
        return cls(sum(counts[0]), sum(counts[1]))

    def as_published(self, prefix: str = "") -> dict[str, int]:
        """The keys of `token_counter` in `results.jsonl`."""
        return {
            f"{prefix}prompt_tokens": self.prompt_tokens,
            f"{prefix}completion_tokens": self.completion_tokens,
            f"{prefix}total_tokens": self.total_tokens,
        }


@dataclass(frozen=True)
class Completion:
    """The text of an answer. `cached`: it was read from disk and cost nothing now.

    `discarded` are the tokens of empty answers to the same question: paid for, no part of the conversation.
    """

    text: str
    usage: Usage = Usage()
    finish: str | None = None
    cached: bool = False
    discarded: Usage = Usage()


@dataclass(frozen=True)
class Sampling:
    """How the model writes: the published defaults are greedy decoding and 512 tokens."""

    temperature: float = 0.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()

    def cut(self, text: str) -> str:
        """The text up to the first stop sequence; for servers that ignore some of them.

        >>> Sampling(stop=("\\nTask:",)).cut("4\\nTask: another")
        '4'
        """
        ends = [text.find(stop) for stop in self.stop]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    def as_key(self) -> dict[str, Any]:
        """What distinguishes two requests."""
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": list(self.stop)}
