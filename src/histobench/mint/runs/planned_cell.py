"""The cells of a run: who plays which dataset under which setting."""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes
from histobench.core.redaction import without_credentials
from histobench.core.version import __version__
from histobench.mint.agents.agent_spec import AgentSpec, parse_agent
from histobench.mint.agents.completion import Sampling
from histobench.mint.configs.cell import NONE, Cell
from histobench.mint.configs.datasets import TaskDataset
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.tasks.base import Rule

#: The folder name of the control arm, in place of an expert's model.
PLACEBO = "placebo"
AGENT_SAMPLING = Sampling()
EXPERT_SAMPLING = Sampling(max_tokens=1024)


@dataclass(frozen=True)
class ExpertPlan:
    kind: FeedbackKind
    spec: AgentSpec | None = None
    sampling: Sampling = EXPERT_SAMPLING


@dataclass(frozen=True)
class PlannedCell:
    cell: Cell
    dataset: TaskDataset
    agent: AgentSpec
    sampling: Sampling = AGENT_SAMPLING
    expert: ExpertPlan | None = None
    rule: Rule = "strict"
    data: Path | None = None
    prompts: str = "own"
    #: Where a search of this cell's tools goes, as `--wikipedia` says it; None where nothing searches.
    wikipedia: str | None = None
    checksum: str | None = None
    #: Dollars per million tokens of the model and the expert, as they were known when the run began.
    prices: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def settings(self) -> dict[str, Any]:
        """What must not change while the folder of the cell grows; kept beside the results."""
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
        if self.checksum is not None:
            settings["data"] = {"dataset": self.dataset.name, "sha256": self.checksum}
        if self.expert is not None:
            sampling = self.expert.sampling
            settings["expert"] = {
                "agent": _without_address(self.expert.spec) if self.expert.spec else PLACEBO,
                "kind": self.expert.kind.name,
                "sampling": {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens},
            }
        return settings

    def record(self) -> dict[str, Any]:
        place = self.agent.base_url
        address = {"address": without_credentials(place)} if place else {}
        return {
            **self.settings(),
            **address,
            "task": _version_of(self.dataset.task_class),
            "prices": dict(self.prices),
            "python": platform.python_version(),
            "histobench": __version__,
        }


def plan_cells(
    name: str,
    agent: AgentSpec,
    datasets: Sequence[TaskDataset],
    budgets: Sequence[int],
    *,
    expert: ExpertPlan | None = None,
    expert_name: str = NONE,
    calls: str = "text",
    **how: Any,
) -> list[PlannedCell]:
    return [
        PlannedCell(
            Cell(
                name,
                dataset.type,
                dataset.name,
                feedback_model=expert_name,
                feedback_type=expert.kind.name if expert else NONE,
                max_steps=budget,
                max_propose_solution=1 if budget == 1 else 2,  # as the benchmark has it
                calls=calls,
            ),
            dataset,
            agent,
            expert=expert,
            **how,
        )
        for budget in budgets
        for dataset in datasets
    ]


def parse_budgets(text: str) -> list[int]:
    budgets: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(?:\.\.|-)\s*(\d+)\s*)?", part)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise HistobenchError(f"{text!r} names no budgets; write `k` 5, `k` 1,3,5 or `k` 1..5")
        budgets += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(budgets))


def plan_expert(text: str, kind: FeedbackKind) -> ExpertPlan | None:
    if text in ("none", NONE):
        return None
    if text == PLACEBO or kind.form == "placebo":
        return ExpertPlan(replace(kind, form="placebo"))
    return ExpertPlan(kind, parse_agent(text))


def _version_of(task_class: type) -> dict[str, Any]:
    version: dict[str, Any] = {"class": f"{task_class.__module__}:{task_class.__qualname__}"}
    try:
        source = inspect.getsourcefile(task_class)
        version["sha256"] = hashlib.sha256(read_bytes(Path(source or ""))).hexdigest()
    except (OSError, TypeError, HistobenchError):
        pass  # a class that was typed in has no file
    return version


def _without_address(spec: AgentSpec) -> str:
    return str(replace(spec, base_url=None))
