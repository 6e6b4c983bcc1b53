"""Consult: does an agent use an image encoder well? The agent is fixed, the encoder is randomized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["ConsultRuns", "Study", "open_runs", "open_study", "policies", "prepare", "register", "run"]

if TYPE_CHECKING:
    from histobench.consult.consult_runs import (
        ConsultRuns,
        open_runs,
        open_study,
        policies,
        prepare,
        register,
        run,
    )
    from histobench.consult.study import Study


def __getattr__(name: str) -> Any:
    if name in __all__:
        from histobench.consult import consult_runs

        return getattr(consult_runs, name)
    raise AttributeError(f"module 'histobench.consult' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
