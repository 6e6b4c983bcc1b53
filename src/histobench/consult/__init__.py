"""Consult: does an agent use an image encoder well? The agent is fixed, the encoder is randomized.

>>> import histobench as hb
>>> study = hb.consult.prepare("crc.csv", ["uni_v1", "efficientnet-lite0", "random-vit"])  # doctest: +SKIP
>>> hb.consult.run(study, "policy:reader")  # doctest: +SKIP
>>> hb.consult.run(study, "openai:gpt-4o-mini", arms=["none", "strong"], max_cost=5)  # doctest: +SKIP
>>> hb.consult.open_runs(study).compare("gpt-4o-mini", "policy-reader")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "ConsultRuns",
    "Study",
    "open_runs",
    "open_study",
    "policies",
    "prepare",
    "register",
    "run",
]

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
