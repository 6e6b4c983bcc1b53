"""The household experts' recorded games, won again through the tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from histobench.mint.alfworld.expert import expert_calls
from histobench.mint.alfworld.expert_replay import replay_expert
from histobench.mint.alfworld.games import GameFile
from histobench.mint.alfworld.simulator import MAX_ACTIONS, Simulator
from histobench.mint.replay.gate import Gate


def is_complete(game: GameFile) -> bool:
    """Whether the expert's record goes on until the goal: it ends with the action that a goal ends with."""
    calls = [call.tool for call in expert_calls(game.expert_trajectory())]
    if not calls or len(calls) > MAX_ACTIONS:
        return False
    if game.goal_type == "examine":
        return calls[-1] == "use"
    return calls[-1] == "put" and calls.count("put") >= (2 if game.goal_type == "puttwo" else 1)


def experts_gate(
    games: Sequence[GameFile], simulator: Simulator, *, workers: int, done: Callable[[], None] = lambda: None
) -> Gate:
    """Complete records that win."""
    complete = [game for game in games if is_complete(game)]

    def wins(game: GameFile) -> bool:
        won = replay_expert(game, simulator).won
        done()
        return won

    with ThreadPoolExecutor(workers) as threads:
        won = list(threads.map(wins, complete))
    note = f"{len(games) - len(complete)} of {len(games)} records stop before the goal"
    return Gate("alfworld: experts' games won", sum(won), len(complete), 1.0, note)
