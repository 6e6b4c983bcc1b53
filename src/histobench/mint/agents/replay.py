"""Recorded episodes as an agent: the messages of a past run, played again without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.completion import ProviderError
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.envs.native_calls import as_native
from histobench.mint.messages.parts import Message, ToolSpec
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome
from histobench.mint.results.recording import Episode, read_played

#: What the agent's provider "said" when more is asked than was recorded.
ENDED = "the recording ends here"


class ReplayPlayer(Player):
    """Episodes of one model from `*.k5.jsonl.gz` recordings or from the `results.jsonl` of a finished run."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._episodes, outcome = _the_only_run(path)
        self.name = outcome.model

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        found = self._episodes.get((key.dataset, str(key.task_id)))
        if found is None:
            raise ProviderError(f"{self._path} has no episode of {key.dataset} {key.task_id}")
        return _ReplayAgent(found.written, found.error or ENDED)


class _ReplayAgent(EpisodeAgent):
    """Says what was recorded; after that it ends with `error`, or says nothing where there is none."""

    def __init__(self, messages: list[Message], error: str | None) -> None:
        self._left, self._error = messages[::-1], error

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        if not self._left:
            if self._error is None:
                return ""
            raise RequestRefusedError(self._error)
        message = self._left.pop()
        if message.parts:
            return message
        return as_native(message.content) if functions else message.content


class ReplayExpert(Player):
    """The feedback of recordings or of a finished run; where none was recorded, none is given."""

    def __init__(self, path: str | Path) -> None:
        self._episodes, outcome = _the_only_run(path)
        self.name = outcome.feedback_model
        if self.name == NO_FEEDBACK:
            raise HistobenchError(f"{path} is not a recording of an expert's feedback")

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        found = self._episodes.get((key.dataset, str(key.task_id)))
        return _ReplayAgent([Message("user", text) for text in found.feedback] if found else [], None)


def _the_only_run(path: str | Path) -> tuple[dict[tuple[str, str], Episode], EpisodeOutcome]:
    if not Path(path).exists():
        raise HistobenchError(f"no recordings at {path}")
    found: dict[tuple[str, str], Episode] = {}
    runs: dict[str, EpisodeOutcome] = {}
    for episode in read_played(path):
        runs[episode.outcome.run_name] = episode.outcome
        found.setdefault(episode.outcome.key, episode)
    if len(runs) != 1:
        raise HistobenchError(
            f"{path} holds recordings of {len(runs)} runs ({'; '.join(sorted(runs))}); name one of them"
        )
    return found, next(iter(runs.values()))
