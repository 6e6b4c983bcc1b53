"""The right environment for a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from histobench.mint.envs.general_env import CELL_TIMEOUT_S, GeneralEnv
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool


def open_environment(
    task: Task,
    tools: Sequence[Tool] = (),
    *,
    pool: SandboxPool | None = None,
    first_cell_number: int = 1,
    cell_timeout: float = CELL_TIMEOUT_S,
    wording: str = "native",
) -> GeneralEnv:
    """A fresh environment; household tasks bring their own actions along, others may bring all of it."""
    from histobench.mint.tasks.alfworld import AlfWorldTask
    from histobench.mint.tasks.codegen import CodeGenTask

    if isinstance(task, CodeGenTask) and pool is not None:
        task.pool = pool
    if isinstance(task, AlfWorldTask):
        from histobench.mint.envs.alfworld_env import AlfWorldEnv

        return AlfWorldEnv(
            task,
            tools,
            pool=pool,
            first_cell_number=first_cell_number,
            cell_timeout=cell_timeout,
            wording=wording,
        )
    settings: dict[str, Any] = {
        "pool": pool,
        "first_cell_number": first_cell_number,
        "cell_timeout": cell_timeout,
        "wording": wording,
    }
    own: GeneralEnv | None = task.open_environment(tools, **settings)
    return own if own is not None else GeneralEnv(task, tools, **settings)
