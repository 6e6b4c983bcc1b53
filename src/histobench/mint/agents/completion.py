"""One answer of a model, what it cost in tokens, and how a provider can fail."""

from __future__ import annotations

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

    def as_published(self, prefix: str = "") -> dict[str, int]:
        """The keys of `token_counter` in `results.jsonl`."""
        return {
            f"{prefix}prompt_tokens": self.prompt_tokens,
            f"{prefix}completion_tokens": self.completion_tokens,
            f"{prefix}total_tokens": self.total_tokens,
        }


@dataclass(frozen=True)
class Completion:
    """The text of an answer. `cached`: it was read from disk and cost nothing now."""

    text: str
    usage: Usage = Usage()
    finish: str | None = None
    cached: bool = False


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
