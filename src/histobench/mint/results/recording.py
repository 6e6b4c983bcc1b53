"""Episodes that were played: recordings as they lie on disk, and folders of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_json_lines
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.messages.parts import Message
from histobench.mint.results.episode_outcome import NO_FEEDBACK, EpisodeOutcome
from histobench.mint.results.stored_episode import StoredEpisode, find_result_files, read_files
from histobench.mint.tasks.base import Rule

SUFFIX = ".jsonl.gz"
_RUN = re.compile(r"(\.k\d+)?\.jsonl\.gz$")


@dataclass(frozen=True)
class Turn:
    """One message of the model and what the environment answered (nothing after the last one)."""

    assistant: str
    kind: str
    verdict: str | None
    observation: str | None
    steps_left: int | None
    proposals_left: int | None
    feedback: str


_TURN = [each.name for each in fields(Turn)][2:-1]


@dataclass(frozen=True)
class Recording:
    run: str
    model: str
    task: str
    task_id: Any
    max_steps: int
    max_propose: int
    first_cell_number: int
    turns: tuple[Turn, ...]
    success: bool
    terminate_reason: str
    counts: dict[str, int]
    flags: frozenset[str]
    error: str | None
    feedback_model: str = NO_FEEDBACK
    feedback_type: str = NO_FEEDBACK
    #: Whether the household goal was reached when the episode was played again; recordings only say that the
    #: game was over. `None` where no one looked.
    won: bool | None = None

    @property
    def name(self) -> str:
        return f"{self.run} {self.task} {self.task_id}"

    @property
    def rule(self) -> Rule:
        """The rule under which it was scored: comparators were repaired while recordings were being made."""
        # The letters of options were recognised by the time the first cell got the number 2.
        options = "theoremqa_option_reworded" in self.flags and self.first_cell_number == 1
        return "recorded" if options or "legacy_negative_reference" in self.flags else "published"

    @property
    def messages(self) -> list[str]:
        return [turn.assistant for turn in self.turns]

    @property
    def written(self) -> list[Message]:
        return [Message("assistant", text) for text in self.messages]

    @property
    def feedback(self) -> list[str]:
        return [turn.feedback for turn in self.turns]

    @property
    def budget(self) -> Budget:
        return Budget(self.max_steps, self.max_propose)

    @property
    def outcome(self) -> EpisodeOutcome:
        return EpisodeOutcome(
            model=self.model,
            feedback_model=self.feedback_model,
            feedback_type=self.feedback_type,
            k=self.max_steps,
            task=self.task,
            task_id=str(self.task_id),
            success=self.success,
            proposals=self.counts["propose_solution"],
            tool_calls=self.counts["use_tool"],
            invalid=self.counts["invalid_action"],
            terminate_reason=self.terminate_reason,
        )


def read_recordings(folder: str | Path) -> Iterator[Recording]:
    folder = Path(folder)
    files = [folder] if folder.is_file() else sorted(folder.glob(f"*.k*{SUFFIX}"))
    if not files:
        raise HistobenchError(f"no recorded episodes in {folder} (files ending with .k5{SUFFIX})")
    for path in files:
        for number, record in read_json_lines(path):
            try:
                yield _recording(_RUN.sub("", path.name), record)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise HistobenchError(f"{path}:{number}: not a recorded episode ({error!r})") from error


def _recording(run: str, record: dict[str, Any]) -> Recording:
    settings = record["settings"]
    feedback = settings.get("feedback")
    return Recording(
        run=run,
        model=record["model"],
        task=record["task"],
        task_id=record["task_id"],
        max_steps=settings["max_steps"],
        max_propose=settings["max_propose"],
        first_cell_number=settings.get("first_cell_number", 1),
        turns=tuple(
            Turn(t["assistant"], t["kind"], *map(t.get, _TURN), t.get("feedback") or "")  # type: ignore[call-arg]
            for t in record["turns"]
        ),
        success=record["success"],
        terminate_reason=record["terminate_reason"],
        counts=record["counts"],
        flags=frozenset(record.get("flags", ())),
        error=record.get("error"),
        feedback_model=feedback["model"] if feedback else NO_FEEDBACK,
        feedback_type=f"{'GT' * feedback['gt'] or 'no_GT'}-{feedback['form']}" if feedback else NO_FEEDBACK,
        won=(record.get("reference_replay") or {}).get("env_won"),
    )


Episode = StoredEpisode | Recording


def read_played(path: str | Path) -> Iterator[Episode]:
    path = Path(path)
    return read_recordings(path) if holds_recordings(path) else read_files(find_result_files(path))


def holds_recordings(path: Path) -> bool:
    return path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}")))
