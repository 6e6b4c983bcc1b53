"""A person at the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from histobench.mint.agents.player import EpisodeAgent, EpisodeKey, Player
from histobench.mint.envs.state import Message

END = "."


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

    def __call__(self, history: tuple[Message, ...]) -> str:
        for message in history[self._shown :]:
            if message.role == "user":
                self._writer.write(f"\n{message.content}\n")
        self._shown = len(history)
        self._writer.write(f"Your message (end with a line {END!r}):\n")
        self._writer.flush()
        lines: list[str] = []
        while line := self._reader.readline():
            if line.rstrip("\r\n") == END:
                return "\n".join(lines)
            lines.append(line.rstrip("\r\n"))
        if not lines:
            raise KeyboardInterrupt  # the input has ended: nobody is there any more
        return "\n".join(lines)
