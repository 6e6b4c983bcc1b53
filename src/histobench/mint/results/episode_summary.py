"""The numbers of one cell: success with its interval, turns, invalid actions, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from histobench.mint.configs.cell import Cell
from histobench.mint.results.episode_outcome import mean_tokens
from histobench.mint.results.stored_episode import FILE, StoredEpisode, read_files
from histobench.mint.results.uncertainty import rate_interval
from histobench.statistics.intervals import Interval


@dataclass(frozen=True)
class CellSummary:
    """Means over the episodes of a cell; `tokens` is unknown for runs that did not count them."""

    episodes: int
    success_rate: float
    interval: Interval
    turns: float
    invalid: float
    tokens: float | None


def summarise_cell(output: str | Path, cell: Cell) -> CellSummary | None:
    """All episodes of a cell below a folder, repeated runs included; `None` without any."""
    found = sorted(Path(output).glob(f"**/{FILE}"))
    files = [
        path for path in found if f"/{path.parent.relative_to(output).as_posix()}".endswith(f"/{cell.path}")
    ]
    episodes = list(read_files(files))
    return summarise(episodes) if episodes else None


def summarise(episodes: Sequence[StoredEpisode]) -> CellSummary:
    """The numbers of some episodes."""
    n = len(episodes)
    outcomes = [episode.outcome for episode in episodes]
    return CellSummary(
        episodes=n,
        success_rate=100 * sum(outcome.success for outcome in outcomes) / n,
        interval=rate_interval(outcomes),
        turns=sum(len(episode.state["history"]) // 2 for episode in episodes) / n,
        invalid=sum(outcome.invalid for outcome in outcomes) / n,
        tokens=mean_tokens(outcomes),
    )
