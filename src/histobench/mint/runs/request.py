"""From what a user asks for to the cells of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.spec import AgentSpec, parse_agent
from histobench.mint.configs.cell import NONE, Cell
from histobench.mint.configs.datasets import TaskDataset
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.runs.planned_cell import AGENT_SAMPLING, PLACEBO, ExpertPlan, PlannedCell
from histobench.mint.tasks.base import Rule


@dataclass(frozen=True)
class RunRequest:
    """One agent, some datasets, some budgets, at most one expert."""

    agent: AgentSpec
    name: str
    datasets: Sequence[TaskDataset]
    budgets: Sequence[int] = (5,)
    expert: ExpertPlan | None = None
    expert_name: str = NONE
    sampling: Sampling = AGENT_SAMPLING
    rule: Rule = "strict"
    data: Path | None = None
    prompts: str = "own"
    calls: str = "text"

    def cells(self) -> list[PlannedCell]:
        """A cell for each budget and dataset."""
        return [self._cell(budget, dataset) for budget in self.budgets for dataset in self.datasets]

    def _cell(self, budget: int, dataset: TaskDataset) -> PlannedCell:
        cell = Cell(
            self.name,
            dataset.type,
            dataset.name,
            feedback_model=self.expert_name,
            feedback_type=self.expert.kind.name if self.expert else NONE,
            max_steps=budget,
            max_propose_solution=proposals_for(budget),
            calls=self.calls,
        )
        return PlannedCell(
            cell, dataset, self.agent, self.sampling, self.expert, self.rule, self.data, self.prompts
        )


def proposals_for(budget: int) -> int:
    """How many proposals the benchmark allows in `budget` actions."""
    return 1 if budget == 1 else 2


def parse_budgets(text: str) -> list[int]:
    """The budgets that a text names.

    >>> parse_budgets("5"), parse_budgets("1..3"), parse_budgets("1,5")
    ([5], [1, 2, 3], [1, 5])
    """
    budgets: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(?:\.\.|-)\s*(\d+)\s*)?", part)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise HistobenchError(f"{text!r} names no budgets; write `k` 5, `k` 1,3,5 or `k` 1..5")
        budgets += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(budgets))


def plan_expert(text: str, kind: FeedbackKind) -> ExpertPlan | None:
    """The expert that a text names: `none`, `placebo` or an agent."""
    if text in ("none", NONE):
        return None
    if text == PLACEBO or kind.form == "placebo":
        return ExpertPlan(replace(kind, form="placebo"))
    return ExpertPlan(kind, parse_agent(text))
