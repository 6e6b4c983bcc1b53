"""Who plays: a model behind an endpoint or a person at the terminal; opens an agent for each episode."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from histobench.core.text import shown
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Completion, Usage
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.envs.native_calls import as_native
from histobench.mint.messages.parts import Message, ToolSpec

END = "."


@dataclass(frozen=True)
class EpisodeKey:
    dataset: str
    task_id: Any
    repeat: int = 1


@dataclass(frozen=True)
class EpisodeLimits:
    tokens: int | None = None
    cost: float | None = None  # dollars
    seconds: float | None = None


class EpisodeAgent(ABC):
    #: Tokens of this episode, answers from the cache included.
    usage: Usage = Usage()
    #: Dollars paid for it now (answers from the cache are free); `None` when a price is unknown.
    cost: float | None = 0.0
    #: The record of each turn (`Completion.turn_record`), and the sets of functions that it refers to.
    turns: Sequence[Mapping[str, Any]] = ()
    function_sets: Sequence[Sequence[Mapping[str, Any]]] = ()

    @abstractmethod
    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        """The next message; `functions` are what may be called in this turn, where calls are native."""


class Player(ABC):
    """A model (or a person, or a recording) under test."""

    name: str
    #: Episodes at a time that it can play; `None` is any number.
    max_concurrency: int | None = None

    @abstractmethod
    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """The agent of one episode."""

    def stop(self) -> None:  # noqa: B027 - most have nothing under way
        """Break off what is under way."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of connections and models."""


class EndpointPlayer(Player):
    """Plays with the answers of an endpoint; `on_close` ends what was started for it."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        max_concurrency: int | None = None,
        on_close: Callable[[], None] | None = None,
        limits: EpisodeLimits | None = None,
    ) -> None:
        self.name = name
        self._limits = limits or EpisodeLimits()
        self.endpoint = endpoint
        self.max_concurrency = max_concurrency
        self._on_close = on_close

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """Repeated episodes are asked for anew, not read from the cache."""
        return _EndpointAgent(self.endpoint, key.repeat, self._limits)

    def stop(self) -> None:
        self.endpoint.stop()

    def close(self) -> None:
        self.endpoint.close()
        if self._on_close is not None:
            self._on_close()


class _EndpointAgent(EpisodeAgent):
    def __init__(self, endpoint: Endpoint, sample: int, limits: EpisodeLimits) -> None:
        self._endpoint = endpoint
        self._sample = sample
        self._limits = limits
        self._deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self._known = (0, 0)  # so many messages were read as so many tokens
        self.turns: list[dict[str, Any]] = []
        self.function_sets: list[list[dict[str, Any]]] = []

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        most = self._endpoint.bound(history, functions, known=self._known)
        self._check_limits(most)
        completion = self._endpoint.ask(
            history, functions=functions, sample=self._sample, most_tokens=most, deadline=self._deadline
        )
        self._note(completion, len(history), functions)
        if completion.ending == "filtered":
            why = (completion.receipt and completion.receipt.problem) or completion.finish
            raise RequestRefusedError(f"the provider withheld the answer ({why})", "filtered")
        return completion.message if completion.parts or completion.ending else completion.text

    def _note(self, completion: Completion, messages: int, functions: Sequence[ToolSpec]) -> None:
        self.usage += completion.usage + completion.discarded
        cost = 0.0 if completion.cached else self._endpoint.cost(completion)
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        record = {"messages": messages, **completion.turn_record(cost)}
        if functions:
            specs = [asdict(spec) for spec in functions]
            if specs not in self.function_sets:
                self.function_sets.append(specs)
            record["functions"] = self.function_sets.index(specs)
        self.turns.append(record)
        if completion.usage.known and completion.usage.prompt_tokens:
            # What the model adds to the conversation is not among the messages yet: counted in bytes then.
            self._known = (messages, completion.usage.prompt_tokens)

    def _check_limits(self, most: tuple[int, int]) -> None:
        limits, price = self._limits, self._endpoint.price
        used = self.usage.total_tokens
        if limits.tokens is not None and used + sum(most) > limits.tokens:
            why = f"{used} of {limits.tokens} tokens used, and the next answer may take {sum(most)}"
            raise RequestRefusedError(f"limit of the episode: {why}", "over_limit")
        if limits.cost is not None and price is not None and self.cost is not None:
            worst = price.worst(*most)
            if self.cost + worst > limits.cost:
                why = f"${self.cost:.4f} of ${limits.cost:.4f} spent, and the next may cost ${worst:.4f}"
                raise RequestRefusedError(f"limit of the episode: {why}", "over_limit")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise RequestRefusedError(f"limit of the episode: {limits.seconds:g} s are over", "over_limit")


class HumanPlayer(Player, EpisodeAgent):
    """Shows the conversation and reads answers of several lines, ended by a line with a single dot."""

    name = "human"
    max_concurrency = 1

    def __init__(self, reader: TextIO | None = None, writer: TextIO | None = None) -> None:
        self._reader = reader or sys.stdin
        self._writer = writer or sys.stderr
        self._shown = 0

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        self._shown = 0
        return self

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        for message in history[self._shown :]:
            if message.role == "user":
                self._writer.write(f"\n{shown(message.content)}\n")
        self._shown = len(history)
        self._writer.write(f"Your message (end with a line {END!r}):\n")
        self._writer.flush()
        lines: list[str] = []
        while line := self._reader.readline():
            if line.rstrip("\r\n") == END:
                return _typed(lines, functions)
            lines.append(line.rstrip("\r\n"))
        if not lines:
            raise KeyboardInterrupt  # the input has ended: no one is there any more
        return _typed(lines, functions)


def _typed(lines: list[str], functions: Sequence[ToolSpec]) -> str | Message:
    text = "\n".join(lines)
    return as_native(text) if functions else text
