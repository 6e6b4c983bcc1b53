"""What a study is to be: its options, declared once, and the roles of its encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from histobench.core.errors import HistobenchError
from histobench.core.records import Declared, option, options_of, record
from histobench.roi.options import Settings

#: Encoders in the order in which they are named.
ROLES = ("strong", "weak", "random")
_STUDY, _INFERENCE = "study", "inference"


@record
class StudyPlan:
    """The options of a study. `encoders` are names in the order strong, weak, random."""

    encoders: tuple[str, ...]
    arms: tuple[str, ...]
    cases: int = option("number of test regions", default=300, least=1, group=_STUDY)
    seed: int = option("seed of everything random", default=0, least=0, group=_STUDY)
    blind: bool = option('call the classes "class A", "class B" and so on', default=False, group=_STUDY)
    organ: str = option("organ named in the prompt", default="", group=_STUDY)
    region: str = option(
        "description of the picture in the prompt",
        default="a tissue region, stained with haematoxylin and eosin",
        group=_STUDY,
    )
    microns_per_pixel: float | None = option(
        "resolution, if known", default=None, above=0, also=("--mpp",), group=_STUDY
    )
    prompts: Path | None = option(
        "prompt file; adds the tool zero_shot() if every encoder has a text tower", default=None, group=_STUDY
    )
    measured: int = option(
        "regions of each class that are measured for the tool typical()", default=50, least=1, group=_STUDY
    )
    similarity: Literal["percentile", "none"] = option(
        "what the tool neighbours() reports about the nearest one", default="percentile", group=_STUDY
    )
    sequences: int = option("sequences of the sequence arms", default=8, least=1, group=_STUDY)
    sequence_length: int = option("cases in each sequence", default=40, least=1, group=_STUDY)
    contrasts: Path | None = option(
        "JSON file of contrasts to register", default=None, default_text="the protocol's four", group=_STUDY
    )
    size: int | None = option(
        "image size in pixels as the encoder sees it",
        default=None,
        least=1,
        default_text="the encoder's own",
        group=_INFERENCE,
    )
    weights: str | None = option(
        "checkpoint, folder of checkpoints, or table such as model_weights.json",
        default=None,
        metavar="PATH",
        group=_INFERENCE,
    )
    settings: Settings = field(default_factory=Settings)


def extraction_options() -> list[Declared]:
    """The options of an extraction that a study has, too."""
    names = ("device", "num_workers", "precision", "compile")
    return [each for each in options_of(Settings) if each.name in names]


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
