"""Episodes as one plain line for each turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from histobench.core.files import atomic_path
from histobench.mint.envs.action import classify
from histobench.mint.results.stored_episode import StoredEpisode


def write_turns(episodes: Sequence[StoredEpisode], path: str | Path) -> None:
    """JSON lines: who said what in which turn of which episode, and how that was read."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for episode in episodes:
            for line in _turn_lines(episode):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _turn_lines(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    outcome = episode.outcome
    who = {"run": outcome.run_name, "dataset": outcome.task, "task_id": outcome.task_id}
    for number, (text, answer) in enumerate(episode.exchanges, start=1):
        yield {**who, "turn": number, "kind": classify(text).kind, "said": text, "answer": answer}
    yield {**who, "turn": None, "success": outcome.success, "terminate_reason": outcome.terminate_reason}
