"""The environment of ALFWorld: the actions are tools on the task's game, and acting can end the episode."""

from __future__ import annotations

from collections.abc import Sequence

from histobench.mint.envs.action import Action
from histobench.mint.envs.general_env import CELL_TIMEOUT_S, GeneralEnv
from histobench.mint.envs.turn_loop import ActionOutcome
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.alfworld import AlfWorldTask
from histobench.mint.tools.alfworld import household_tools
from histobench.mint.tools.base import Tool


class AlfWorldEnv(GeneralEnv):
    """One game with its eleven actions in the Python session."""

    def __init__(
        self,
        task: AlfWorldTask,
        tools: Sequence[Tool] = (),
        *,
        pool: SandboxPool | None = None,
        first_cell_number: int = 1,
        cell_timeout: float = CELL_TIMEOUT_S,
        wording: str = "native",
    ) -> None:
        self._household = task
        super().__init__(
            task,
            [*household_tools(task.game), *tools],
            pool=pool,
            first_cell_number=first_cell_number,
            cell_timeout=cell_timeout,
            wording=wording,
        )

    def solved_by_acting(self) -> bool:
        """Whether the simulator says that the goal is reached."""
        return self._household.solved()

    def close(self) -> None:
        """End the session and the game."""
        super().close()
        self._household.close()

    def outcome(self, action: Action) -> ActionOutcome:
        """What comes of an action; a broken game is not the agent's doing: the episode is played again."""
        outcome = super().outcome(action)
        failure = self._household.game.failure
        if failure is not None:
            raise failure
        return outcome
