"""What a study is to be: its options, declared once, and the roles of its encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from histobench.core.errors import HistobenchError
from histobench.core.records import Declared, option, options_of, record
from histobench.mint.agents.completion import Sampling
from histobench.mint.configs.cell import CALLS
from histobench.mint.runs.run_options import RunOptions
from histobench.roi.options import Settings

ROLES = ("strong", "weak", "random")
_STUDY, _INFERENCE, _WHAT = "study", "inference", "what is run"


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


@record
class ReadsStudy:
    study: str = option(
        "folder that `histobench consult prepare` wrote", default="", positional=True, required=True
    )


@record
class ConsultRun:
    """Which arms of a study an agent plays, and how. `options` are those of every run of agents."""

    study: str
    options: RunOptions
    arms: str = option(
        "arms, separated by commas", default="all", default_text="all without an expert", group=_WHAT
    )
    calls: str | None = option(
        "how the agent acts: tags in its text, or function calls",
        default=None,
        choices=CALLS,
        default_text="text; policies always call functions",
        group=_WHAT,
    )
    pictures: bool = option("the agent sees the region and may call look(box)", default=False, group=_WHAT)
    expert: str | None = option("the agent that gives feedback in the arm expert", default=None, group=_WHAT)
    outcomes: bool = option(
        "in sequence arms, tell the agent after each case whether its final answer was right",
        default=False,
        group=_WHAT,
    )

    @property
    def is_policy(self) -> bool:
        return (self.options.agent or "").startswith("policy:")

    @property
    def how_called(self) -> str:
        return "native" if self.is_policy else self.calls or "text"

    @property
    def sampling(self) -> Sampling:
        return replace(self.options, calls=self.how_called).sampling


#: The options of `histobench mint run` that a run of a study has, too.
RUN_OPTIONS = (
    *("agent", "limit", "repeat", "name", "output", "sandbox", "concurrency", "max_cost", "max_tokens"),
    *("temperature", "top_p", "seed", "reasoning_effort", "reasoning_history", "constrain", "cache"),
    *("prices", "attempts", "timeout", "rpm", "tpm"),
)


#: The options of an extraction that a study has, too.
EXTRACTION = ("device", "num_workers", "precision", "compile")


def study_options() -> list[Declared]:
    return [*options_of(StudyPlan), *(each for each in options_of(Settings) if each.name in EXTRACTION)]


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
