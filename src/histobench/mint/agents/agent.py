"""Who plays: a model behind an endpoint or a person at the terminal; opens an agent for each episode."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from histobench.core.terminal_text import shown
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Usage
from histobench.mint.envs.native_calls import as_native
from histobench.mint.messages.parts import Message, ToolSpec

#: A line of this alone ends what a person writes.
END = "."


@dataclass(frozen=True)
class EpisodeKey:
    """Which episode of a cell: the task, and the how-manieth time it is played."""

    dataset: str
    task_id: Any
    repeat: int = 1


class EpisodeAgent(ABC):
    """Writes the messages of one episode and keeps its accounts."""

    #: Tokens of this episode, answers from the cache included.
    usage: Usage = Usage()
    #: Dollars paid for it now (answers from the cache are free); `None` when a price is unknown.
    cost: float | None = 0.0

    @abstractmethod
    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        """The next message; a text, or a message where there is more to it.

        `functions` are given where calls are native: what the model may call in this turn.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """The episode is over."""


class Player(ABC):
    """A model (or a person, or a recording) under test."""

    #: The name in result folders and tables.
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
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.max_concurrency = max_concurrency
        self._on_close = on_close

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """Repeated episodes are asked for anew, not read from the cache."""
        return _EndpointAgent(self.endpoint, key.repeat)

    def stop(self) -> None:
        """Break off all requests."""
        self.endpoint.stop()

    def close(self) -> None:
        """End the connections."""
        self.endpoint.close()
        if self._on_close is not None:
            self._on_close()


class _EndpointAgent(EpisodeAgent):
    def __init__(self, endpoint: Endpoint, sample: int) -> None:
        self._endpoint = endpoint
        self._sample = sample
        endpoint.begin_episode()

    def close(self) -> None:
        """Nobody waits for it any more."""
        self._endpoint.end_episode()

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        completion = self._endpoint.ask(history, functions=functions, sample=self._sample)
        self.usage += completion.usage
        if not completion.cached and self.cost is not None:
            cost = self._endpoint.cost(completion)
            self.cost = None if cost is None else self.cost + cost
        return completion.message if completion.parts else completion.text


class HumanPlayer(Player):
    """Shows the conversation and reads answers of several lines, ended by a line with a single dot."""

    name = "human"
    max_concurrency = 1

    def __init__(self, reader: TextIO | None = None, writer: TextIO | None = None) -> None:
        self._reader = reader
        self._writer = writer

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """One person plays all episodes, one after the other."""
        return _HumanAgent(self._reader or sys.stdin, self._writer or sys.stderr)


class _HumanAgent(EpisodeAgent):
    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        self._reader = reader
        self._writer = writer
        self._shown = 0

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
            raise KeyboardInterrupt  # the input has ended: nobody is there any more
        return _typed(lines, functions)


def _typed(lines: list[str], functions: Sequence[ToolSpec]) -> str | Message:
    """What a person wrote; people write the text dialect, whatever the loop speaks."""
    text = "\n".join(lines)
    return as_native(text) if functions else text
