"""Plays an expert's recorded actions through the tools."""

from __future__ import annotations

from dataclasses import dataclass

from histobench.mint.alfworld.games import GameFile
from histobench.mint.alfworld.simulator import Simulator, expert_calls, expert_observations
from histobench.mint.tools.alfworld import household_tools


@dataclass(frozen=True)
class ExpertReplay:
    """What came of an expert's actions."""

    game: GameFile
    won: bool
    actions: int
    same_observations: int

    @property
    def as_recorded(self) -> bool:
        """Whether the simulator said what the record says, at every action."""
        return self.same_observations == self.actions


def replay_expert(game: GameFile, simulator: Simulator) -> ExpertReplay:
    """Every recorded action of one game."""
    trajectory = game.expert_trajectory()
    calls, recorded = expert_calls(trajectory), expert_observations(trajectory)
    running = simulator.start(game.path)
    try:
        tools = {tool.name: tool for tool in household_tools(running)}
        seen = [tools[call.tool](*call.arguments) for call in calls]
        same = sum(now == then for now, then in zip(seen, recorded, strict=False))
        return ExpertReplay(game, running.won, len(calls), same)
    finally:
        running.close()
