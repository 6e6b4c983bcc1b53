"""Recorded feedback, given again turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.agents.player import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.replay_player import the_only_run
from histobench.mint.envs.state import Message
from histobench.mint.replay.recording import SUFFIX, read_recordings
from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome
from histobench.mint.results.stored_episode import find_result_files, read_episodes

HEADER = "\nExpert feedback:\n"


class ReplayExpert(Player):
    """The feedback of recordings or of a finished run; where none was recorded, none is given."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).exists():
            raise HistobenchError(f"no recordings at {path}")
        self._feedback: dict[tuple[str, str], list[str]] = {}
        runs: dict[str, str] = {}
        for outcome, feedback in _recorded(Path(path)):
            runs[outcome.run_name] = outcome.feedback_model
            self._feedback.setdefault(outcome.key, feedback)
        self.name = runs[the_only_run(path, runs)]
        if self.name == NO_FEEDBACK:
            raise HistobenchError(f"{path} is not a recording of an expert's feedback")

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """The feedback of one episode."""
        return _ReplayedFeedback(self._feedback.get((key.dataset, str(key.task_id)), []))


class _ReplayedFeedback(EpisodeAgent):
    def __init__(self, feedback: list[str]) -> None:
        self._left = list(reversed(feedback))

    def __call__(self, history: tuple[Message, ...]) -> str:
        return self._left.pop() if self._left else ""


def _recorded(path: Path) -> Iterator[tuple[EpisodeOutcome, list[str]]]:
    """(outcome, feedback of each turn) of every episode."""
    if path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}"))):
        for recording in read_recordings(path):
            feedback = [turn.feedback for turn in recording.turns]
            yield recording.outcome, feedback
        return
    for file in find_result_files(path):
        for episode in read_episodes(file):
            answers = [answer or "" for _, answer in episode.exchanges]
            feedback = [text.partition(HEADER)[2].removesuffix("\n") for text in answers]
            yield episode.outcome, feedback
