"""What a study is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from histobench.consult.arms import ROLES
from histobench.core.errors import HistobenchError


@dataclass(frozen=True)
class StudyPlan:
    """What a study is to be. `encoders` are names in the order strong, weak, random."""

    encoders: tuple[str, ...]
    arms: tuple[str, ...]
    cases: int = 300
    seed: int = 0
    blind: bool = False
    organ: str = ""
    region: str = "a tissue region, stained with haematoxylin and eosin"
    microns_per_pixel: float | None = None
    prompts: Path | None = None
    #: Training and validation regions of each class that are measured.
    measured: int = 50
    weights: str | None = None
    device: str | None = None
    num_workers: int = 8
    compile: str = "auto"


def assign_roles(names: Sequence[str]) -> dict[str, str]:
    """Role -> encoder: in the order strong, weak, random; a name that begins with `random` is the random one.

    >>> assign_roles(["uni_v1", "random-vit"])
    {'strong': 'uni_v1', 'random': 'random-vit'}
    """
    if not names or len(names) > len(ROLES) or len(set(names)) != len(names):
        raise HistobenchError("`encoders` names one to three different encoders: STRONG,WEAK,random-vit")
    plain = [name for name in names if not name.startswith("random")] or list(names)
    noise = [name for name in names if name not in plain]
    roles = dict(zip(ROLES, plain, strict=False))
    return roles | ({"random": noise[0]} if noise else {})
