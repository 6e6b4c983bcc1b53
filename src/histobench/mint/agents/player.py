"""Who plays: opens an agent for each episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from histobench.mint.agents.completion import Usage
from histobench.mint.envs.state import Message


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
    def __call__(self, history: tuple[Message, ...]) -> str:
        """The next message."""


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
