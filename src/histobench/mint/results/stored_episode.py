"""Finished episodes as `results.jsonl` keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_json_lines
from histobench.core.text import natural_order
from histobench.mint.configs.cell import Cell, parse_cell
from histobench.mint.envs.action import classify
from histobench.mint.envs.turn_loop import ASSISTANT, Budget, unsolved
from histobench.mint.messages.parts import FEEDBACK_HEADING, Message
from histobench.mint.messages.record import IMAGES, message_from_record, picture_files
from histobench.mint.results.episode_outcome import EpisodeOutcome

DETAILS = "details.jsonl"
#: Episodes that could not be played to their end through no fault of the model.
FAILURES = "provider_failures.jsonl"


def read_details(results: Path) -> dict[str, dict[str, Any]]:
    return _by_task(results.with_name(DETAILS))


def read_failures(results: Path) -> dict[str, str]:
    failures = _by_task(results.with_name(FAILURES))
    return {task_id: str(note.get("outcome") or "provider_failure") for task_id, note in failures.items()}


def _by_task(path: Path) -> dict[str, dict[str, Any]]:
    lines = read_json_lines(path) if path.is_file() else ()
    found = (record for _, record in lines if isinstance(record, dict) and "task_id" in record)
    return {str(record["task_id"]): record for record in found}  # of two, the later belongs to the result


def gave_answer_away(details: dict[str, Any]) -> bool | None:
    leaks = (details.get("feedback") or {}).get("leaks") or []
    judged = [leak for leak in leaks if leak is not None]
    return any(judged) if judged else None


FILE = "results.jsonl"
#: Below a folder of results: what several processes have played, each in a folder of its own.
WRITERS = "writers"
WRITER = re.compile(r"\d+of\d+-[0-9a-f]{8}")


@dataclass(frozen=True)
class StoredEpisode:
    """One line: the cell it belongs to, the state at the end and the task; and what stands beside it."""

    cell: Cell
    state: dict[str, Any]
    task: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()  # where the line was read, and its pictures lie
    won: bool | None = None  # only recordings tell it apart from success

    @property
    def messages(self) -> list[str]:
        return [message.content for message, _ in self._turns()]

    @property
    def written(self) -> list[Message]:
        return [message for message, _ in self._turns()]

    @property
    def exchanges(self) -> list[tuple[str, str | None]]:
        """Each message of the model with the user's answer to it; a last message has none."""
        return [(message.content, answer) for message, answer in self._turns()]

    @property
    def feedback(self) -> list[str]:
        answers = [answer or "" for _, answer in self._turns()]
        return [answer.partition(FEEDBACK_HEADING)[2].removesuffix("\n") for answer in answers]

    @property
    def budget(self) -> Budget:
        return Budget(self.cell.max_steps, self.cell.max_propose_solution)

    @property
    def error(self) -> str | None:
        error: str | None = self.state.get("error")
        return error

    @property
    def pictures(self) -> list[list[Path]]:
        """The files of the pictures in the task, and in the answer to each message of the model."""
        shown = [picture_files(entry) for entry in self.state["history"] if entry["role"] != "assistant"]
        shown += [[] for _ in range(len(self._turns()) + 1 - len(shown))]
        return [[self.folder / IMAGES / name for name in names] for names in shown]

    def _turns(self) -> list[tuple[Message, str | None]]:
        """A message without text is not part of the history: two messages of the user in a row tell of it, or
        the counters, at the end of an episode.
        """
        turns: list[tuple[Message, str | None]] = []
        silence = Message("assistant", "")
        waiting: Message | None = None
        for entry in self.state["history"][1:]:
            if entry["role"] == "assistant":
                text = entry["content"].removeprefix(f"{ASSISTANT}\n").removesuffix("\n")
                waiting = message_from_record({**entry, "content": text})
            else:
                turns.append((waiting or silence, entry["content"]))
                waiting = None
        if waiting is not None:
            turns.append((waiting, None))
        elif sum(self.state["agent_action_count"].values()) > len(turns):
            turns.append((silence, None))
        return turns

    @property
    def outcome(self) -> EpisodeOutcome:
        counts = self.state["agent_action_count"]
        return EpisodeOutcome(
            model=self.cell.agent,
            feedback_model=self.cell.feedback_model,
            feedback_type=self.cell.feedback_type,
            k=self.cell.max_steps,
            task=self.cell.dataset,
            task_id=str(self.task["task_id"]),
            success=bool(self.state["success"]),
            proposals=counts["propose_solution"],
            tool_calls=counts["use_tool"],
            invalid=counts["invalid_action"],
            terminate_reason=self.state["terminate_reason"] or "",
            tokens=(self.state.get("token_counter") or {}).get("total_tokens") or None,
            leaked=gave_answer_away(self.details),
            family=self.cell.family,
            outcome=str(self.details.get("outcome") or self._ending()),
        )

    def _ending(self) -> str:
        if self.state["success"] or self.state["terminate_reason"] not in ("max_steps", "max_propose_steps"):
            return ""  # the ending says it
        messages = self.messages
        return unsolved(classify(messages[-1] if messages else ""))


def find_result_files(path: str | Path) -> list[Path]:
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob(FILE))
    if not files:
        raise HistobenchError(f"no {FILE} in {path}")
    return files


class EachOnce:
    """Lets an episode of one cell pass once, though two processes of one run may have played it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Path, str], Path] = {}

    def of(self, path: Path, episodes: Iterable[StoredEpisode]) -> Iterator[StoredEpisode]:
        place = _without_writer(path)
        for episode in episodes:
            if self._seen.setdefault((place, str(episode.task["task_id"])), path) == path:
                yield episode


def read_files(files: Iterable[Path]) -> Iterator[StoredEpisode]:
    """The episodes of several results files, each once, sorted by cell and task: not as they ended."""
    once = EachOnce()
    cells: dict[Path, list[Path]] = {}
    for file in files:
        cells.setdefault(_without_writer(file), []).append(file)
    for cell in sorted(cells):
        episodes = [episode for file in cells[cell] for episode in once.of(file, read_episodes(file))]
        yield from sorted(episodes, key=lambda episode: natural_order(episode.task["task_id"]))


def read_cell(output: str | Path, cell: Cell) -> list[StoredEpisode]:
    found = sorted(Path(output).glob(f"**/{FILE}"))
    places = {path: f"/{path.parent.relative_to(output).as_posix()}" for path in found}
    return list(read_files(path for path, place in places.items() if place.endswith(f"/{cell.path}")))


def read_unfinished(files: Iterable[Path]) -> Iterator[EpisodeOutcome]:
    """Episodes that could not be played to their end and are in no results file: not how often."""
    files = list(files)
    finished = {
        (_without_writer(file), str(e.task["task_id"])) for file in files for e in read_episodes(file)
    }
    for file in sorted(files, key=_without_writer):
        cell = parse_cell(file.resolve().parent.as_posix())
        for task_id, outcome in sorted(read_failures(file).items()):
            key = (_without_writer(file), task_id)
            if key not in finished:
                finished.add(key)
                yield EpisodeOutcome(
                    cell.agent,
                    cell.feedback_model,
                    cell.feedback_type,
                    cell.max_steps,
                    cell.dataset,
                    task_id,
                    success=False,
                    family=cell.family,
                    outcome=outcome,
                )


def _without_writer(path: Path) -> Path:
    """Where the line would stand if one process had played everything."""
    return Path(re.sub(rf"(.*(?:^|/)){WRITERS}/{WRITER.pattern}/", r"\1", path.as_posix(), count=1))


def read_episodes(path: str | Path) -> Iterator[StoredEpisode]:
    """Every whole line of a results file; a torn last line is an episode that was not finished."""
    path = Path(path)
    cell = parse_cell(path.resolve().parent.as_posix())
    details = read_details(path)
    for number, record in read_json_lines(path):
        try:
            beside = details.get(str(record["task"]["task_id"]), {})
            episode = StoredEpisode(cell, record["state"], record["task"], beside, path.parent)
            _ = episode.outcome, episode.exchanges  # code that reads these later finds them whole
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HistobenchError(f"{path}:{number}: not a finished episode ({error!r})") from error
        yield episode


def finished_in(path: Path) -> dict[str, bool]:
    finished: dict[str, bool] = {}
    for number, record in read_json_lines(path) if path.is_file() else ():
        try:
            task_id, success = str(record["task"]["task_id"]), bool(record["state"]["success"])
        except (KeyError, TypeError) as error:
            raise HistobenchError(f"{path}:{number}: not a finished episode ({error!r})") from error
        if task_id in finished:
            raise HistobenchError(f"{path}:{number}: the task {task_id} is there twice; remove one line")
        finished[task_id] = success
    return finished
