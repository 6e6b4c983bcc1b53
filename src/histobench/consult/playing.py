"""A run of Consult: one cell of MINT's matrix for each arm, played by MINT's loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from histobench.consult.consultation import FAMILY, ConsultTask
from histobench.consult.policies import KIND, PolicyModels, PolicyPlayer
from histobench.consult.study import Study
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.agents.agent import Player
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.factory import Terms, open_player
from histobench.mint.agents.spec import AgentSpec
from histobench.mint.configs.cell import NONE, Cell
from histobench.mint.configs.dataset import Dataset
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.runs.planned_cell import PLACEBO, ExpertPlan, PlannedCell
from histobench.mint.runs.run import OpenPlayer
from histobench.mint.tasks.base import Task

#: Turns of an episode, two of them for answers.
TURNS = 5
ANSWERS = 2
#: Five messages of at most so many tokens are the 4,000 of the protocol.
MAX_TOKENS = 800


@dataclass(frozen=True)
class ConsultCell(PlannedCell):
    """A cell that remembers which study it was played on."""

    study: str = ""

    def settings(self) -> dict[str, Any]:
        """Also the cases and answers: a study that was prepared anew is another one."""
        return {**super().settings(), "study": self.study}


@dataclass(frozen=True)
class Seat:
    """Who plays and how."""

    agent: AgentSpec
    name: str
    sampling: Sampling
    calls: str = "text"
    sees: bool = False
    expert: ExpertPlan | None = None
    expert_name: str = NONE


def check_arms(study: Study, text: str) -> list[str]:
    """The arms that a list names; `all` is every prepared arm that needs no expert model."""
    prepared = study.facts.arms
    if text.strip() == "all":
        return [arm for arm in prepared if arm != "expert"]
    arms = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for arm in arms:
        if arm not in prepared:
            raise HistobenchError(f"the study has no arm {arm!r}; {did_you_mean(arm, prepared)}")
    if not arms:
        raise HistobenchError("no arm is named; give `arms`, such as `arms` none,strong")
    return arms


def plan_cells(
    study: Study, arms: Sequence[str], seat: Seat, *, limit: int | None = None
) -> list[tuple[PlannedCell, list[Task]]]:
    """A cell for each arm with all its cases."""
    pictures = study.pictures() if seat.sees else {}
    planned: list[tuple[PlannedCell, list[Task]]] = []
    for arm in arms:
        expert, expert_name = _adviser(arm, seat)
        name = f"{study.facts.dataset}@{arm}".replace("/", "_")
        dataset = Dataset(name, ConsultTask, FAMILY)
        cell = Cell(
            f"{seat.name}+pictures" if seat.sees else seat.name,
            FAMILY,
            name,
            feedback_model=expert_name,
            feedback_type=expert.kind.name if expert else NONE,
            max_steps=TURNS,
            max_propose_solution=ANSWERS,
            calls=seat.calls,
        )
        tasks: list[Task] = [
            ConsultTask(study, case, arm, pictures.get(case.id)) for case in study.cases[:limit]
        ]
        planned.append(
            (
                ConsultCell(cell, dataset, seat.agent, seat.sampling, expert, study=study.fingerprint),
                tasks,
            )
        )
    return planned


def player_opener(study: Study, terms: Terms) -> OpenPlayer:
    """Opens policies here and everybody else by MINT's factory."""
    models = PolicyModels(study)

    def open_one(spec: AgentSpec, sampling: Sampling, as_expert: bool) -> Player:
        if spec.kind == KIND:
            return PolicyPlayer(study, spec.target, models)
        return open_player(spec, terms, sampling=sampling, as_expert=as_expert)

    return open_one


def _adviser(arm: str, seat: Seat) -> tuple[ExpertPlan | None, str]:
    if arm == PLACEBO:
        return ExpertPlan(FeedbackKind(False, "placebo")), PLACEBO
    if arm == "expert":
        if seat.expert is None:
            raise HistobenchError("the arm expert needs an expert: give `expert` AGENT")
        return seat.expert, seat.expert_name
    return None, NONE
