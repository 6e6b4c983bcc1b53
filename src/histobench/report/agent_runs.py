"""Runs of language-model agents: finished episodes, grouped by agent, expert and budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.mint.envs.action import classify
from histobench.mint.messages.feedback_heading import FEEDBACK_HEADING
from histobench.mint.messages.parts import Message, Reasoning
from histobench.mint.replay.recording import SUFFIX, Recording, read_recordings
from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome
from histobench.mint.results.stored_episode import FILE, EachOnce, StoredEpisode, read_episodes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Turn:
    """What the agent wrote and what came back."""

    text: str
    kind: str
    observation: str | None = None
    feedback: str = ""
    pictures: tuple[Path, ...] = ()  # what the observation shows


@dataclass(frozen=True)
class Episode:
    """One conversation and how it ended."""

    outcome: EpisodeOutcome
    prompt: str
    turns: tuple[Turn, ...]
    reference: str = ""
    error: str = ""
    tokens: int | None = None
    pictures: tuple[Path, ...] = ()  # what the task shows


@dataclass
class AgentRun:
    """All episodes of an agent with one expert (or none) and one budget."""

    agent: str
    feedback_model: str
    feedback_type: str
    k: int
    episodes: list[Episode] = field(default_factory=list)

    @property
    def feedback(self) -> str:
        """The expert in words; empty without one."""
        if self.feedback_model == NO_FEEDBACK:
            return ""
        return f"{self.feedback_model} ({self.feedback_type})"

    @property
    def name(self) -> str:
        """What the run is called on the pages."""
        return f"{self.agent}{f' + {self.feedback}' if self.feedback else ''}, k = {self.k}"


def find_agent_runs(results_dir: Path, *, elsewhere: Sequence[Path] = ()) -> tuple[list[AgentRun], list[str]]:
    """Every run below a folder (`results.jsonl`, or recordings `*.k5.jsonl.gz`), and what cannot be read.

    Files in the folders `elsewhere` have pages of their own.
    """
    runs: dict[tuple[str, str, str, int], AgentRun] = {}
    problems: list[str] = []
    files = [*sorted(results_dir.rglob(FILE)), *sorted(results_dir.rglob(f"*.k*{SUFFIX}"))]
    once = EachOnce()
    for path in files:
        if any(path.is_relative_to(folder) for folder in elsewhere):
            continue
        try:
            for episode in _episodes(path, once):
                o = episode.outcome
                key = (o.model, o.feedback_model, o.feedback_type, o.k)
                runs.setdefault(key, AgentRun(*key)).episodes.append(episode)
        except HistobenchError as error:
            problems.append(str(error).replace(f"{results_dir.as_posix()}/", ""))
    order = sorted(runs, key=lambda key: (key[0].lower(), key[1] != NO_FEEDBACK, key[1], key[2], key[3]))
    return [runs[key] for key in order], problems


def _episodes(path: Path, once: EachOnce) -> Iterator[Episode]:
    if path.name == FILE:
        yield from map(conversation, once.of(path, read_episodes(path)))
    else:
        yield from map(_from_recording, read_recordings(path))


def _from_recording(recording: Recording) -> Episode:
    turns = tuple(
        Turn(turn.assistant, turn.kind, turn.observation, turn.feedback) for turn in recording.turns
    )
    return Episode(recording.outcome, "", turns, error=recording.error or "")


def conversation(episode: StoredEpisode) -> Episode:
    """A stored episode turn by turn."""
    state, task = episode.state, episode.task
    history = state["history"]
    prompt = str(history[0]["content"]) if history and history[0]["role"] == "user" else ""
    answers = [answer for _, answer in episode.exchanges]
    shown = [tuple(files) for files in episode.pictures]
    turns = [
        _turn(message, answer, pictures)
        for message, answer, pictures in zip(episode.written, answers, shown[1:], strict=True)
    ]
    usage: Any = state.get("token_counter") or {}
    return Episode(
        episode.outcome,
        prompt,
        tuple(turns),
        reference=str(task.get("reference", "")),
        error=str(state.get("error") or ""),
        tokens=usage.get("total_tokens") if isinstance(usage, dict) else None,
        pictures=shown[0],
    )


def _turn(message: Message, answer: str | None, pictures: tuple[Path, ...]) -> Turn:
    """The turn with the next user message taken apart; what the model thought stands before what it wrote."""
    kind = classify(message.content).kind
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning)]
    text = "\n".join(
        [*(f"[reasoning]\n{thought or '(not shown)'}\n" for thought in thoughts), message.content]
    )
    if answer is None:
        return Turn(text, kind)
    observation, _, feedback = answer.partition(FEEDBACK_HEADING)
    observation = observation.removeprefix("Observation:\n").rstrip("\n")
    return Turn(text, kind, observation, feedback.rstrip("\n"), pictures)
