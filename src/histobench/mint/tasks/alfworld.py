"""ALFWorld: a household goal, reached by acting in the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from histobench.mint.alfworld.games import GameFile, read_games
from histobench.mint.alfworld.simulator import Game, shared_simulator
from histobench.mint.tasks.base import Task

INSTRUCTION = "Act in a household to reach the goal of the task. "


class AlfWorldTask(Task):
    """One game. The prompt is the game's own introduction, so asking for it starts the simulator."""

    task_name = "alfworld"
    decided_by_acting = True

    def __init__(self, game_file: GameFile, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.game_file = game_file
        self.task_name = f"alfworld/{game_file.goal_type}"  # type: ignore[misc]
        self._id = game_file.id
        self.metadata["task_type"] = game_file.goal_type
        self._game: Game | None = None

    @property
    def game(self) -> Game:
        if self._game is None:
            self._game = shared_simulator().start(self.game_file.path)
        return self._game

    @property
    def prompt(self) -> str:
        return INSTRUCTION + self.bare_prompt

    @property
    def bare_prompt(self) -> str:
        return "\n".join(self.game.intro.split("\n\n")[1:]).strip()

    @property
    def reference(self) -> str:
        """How an expert solved it; for feedback, never for the verdict."""
        return self.game_file.expert_trajectory()

    def solved(self) -> bool:
        """Whether the goal is reached; the published rule also counts running out of actions."""
        if self._game is None:
            return False
        return self._game.won if self.rule == "strict" else self._game.done

    def success(self, solution: str) -> bool:
        """What the agent claims does not matter, only what it did."""
        return self.solved()

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None

    @classmethod
    def load_tasks(cls, path: str) -> tuple[Iterable[Task], int]:
        folder = Path(path)
        games = read_games(folder if folder.is_dir() else folder.parent)
        return [cls(game) for game in games], len(games)
