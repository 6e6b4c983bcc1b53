"""The MINT track: language models as agents in multi-turn tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["AgentRuns", "compare", "open_runs", "register", "run", "table"]

if TYPE_CHECKING:
    from histobench.mint.agent_runs import AgentRuns, compare, open_runs, run, table
    from histobench.mint.configs.datasets import register


def __getattr__(name: str) -> Any:
    if name == "register":
        from histobench.mint.configs.datasets import register

        return register
    if name in __all__:
        from histobench.mint import agent_runs

        return getattr(agent_runs, name)
    raise AttributeError(f"module 'histobench.mint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
