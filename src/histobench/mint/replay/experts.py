"""The household experts' recorded games, won again through the tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from histobench.mint.alfworld.expert_replay import replay_expert
from histobench.mint.alfworld.games import GameFile
from histobench.mint.alfworld.simulator import MAX_ACTIONS, Simulator, expert_calls
from histobench.mint.replay.gate import Gate


def fits_an_episode(game: GameFile) -> bool:
    """Whether the expert needed no more actions than an episode has."""
    return 0 < len(expert_calls(game.expert_trajectory())) <= MAX_ACTIONS


def experts_gate(
    games: Sequence[GameFile], simulator: Simulator, *, workers: int, done: Callable[[], None] = lambda: None
) -> Gate:
    """Records that win."""
    fitting = [game for game in games if fits_an_episode(game)]

    def wins(game: GameFile) -> bool:
        won = replay_expert(game, simulator).won
        done()
        return won

    with ThreadPoolExecutor(workers) as threads:
        won = list(threads.map(wins, fitting))
    note = f"{len(games) - len(fitting)} of {len(games)} records are longer than an episode"
    return Gate("alfworld: experts' games won", sum(won), len(fitting), 1.0, note)
