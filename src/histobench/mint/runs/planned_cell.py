"""One cell of a run: who plays which dataset under which setting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from histobench import __version__
from histobench.core.address import without_credentials
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.spec import AgentSpec
from histobench.mint.configs.cell import Cell
from histobench.mint.configs.dataset import Dataset
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.tasks.rule import Rule

#: The folder name of the control arm, in place of an expert's model.
PLACEBO = "placebo"
AGENT_SAMPLING = Sampling()
EXPERT_SAMPLING = Sampling(max_tokens=1024)


@dataclass(frozen=True)
class ExpertPlan:
    """Who gives feedback (nobody for a placebo) and of which kind."""

    kind: FeedbackKind
    spec: AgentSpec | None = None
    sampling: Sampling = EXPERT_SAMPLING


@dataclass(frozen=True)
class PlannedCell:
    """Everything that decides how the episodes of a cell are played."""

    cell: Cell
    dataset: Dataset
    agent: AgentSpec
    sampling: Sampling = AGENT_SAMPLING
    expert: ExpertPlan | None = None
    rule: Rule = "strict"
    data: Path | None = None
    prompts: str = "own"
    #: Where a search of this cell's tools goes, as `--wikipedia` says it; None where nothing searches.
    wikipedia: str | None = None

    def settings(self) -> dict[str, Any]:
        """What must not change while the folder of the cell grows; kept beside the results.

        Addresses are left out: a server that comes back on another port is the same model.
        """
        settings: dict[str, Any] = {
            "agent": _without_address(self.agent),
            "sampling": {"temperature": self.sampling.temperature, "max_tokens": self.sampling.max_tokens},
            "rule": self.rule,
            "prompts": self.prompts,
        }
        settings["sampling"] |= self.sampling.extras()
        if self.cell.calls != "text":
            settings["calls"] = self.cell.calls
        if self.wikipedia is not None:
            kind, colon, place = self.wikipedia.partition(":")
            settings["wikipedia"] = kind + colon + Path(place).name  # a file that was moved is the same tape
        if self.expert is not None:
            sampling = self.expert.sampling
            settings["expert"] = {
                "agent": _without_address(self.expert.spec) if self.expert.spec else PLACEBO,
                "kind": self.expert.kind.name,
                "sampling": {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens},
            }
        return settings

    def record(self) -> dict[str, Any]:
        """The settings with the address at the start and the version that made the results."""
        place = self.agent.base_url
        address = {"address": without_credentials(place)} if place else {}
        return {**self.settings(), **address, "histobench": __version__}


def _without_address(spec: AgentSpec) -> str:
    return str(replace(spec, base_url=None))
