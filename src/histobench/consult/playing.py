"""Plays a study: one cell of MINT's matrix for each arm, by MINT's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.consult.arms import ARMS, SEQUENCE_ARMS, named_arms, random_order, steps_of
from histobench.consult.consultation import ConsultTask, Kept, SequenceMemory
from histobench.consult.reference_agents import POLICIES, PolicyModels, PolicyPlayer, parse_policy
from histobench.consult.study import FAMILY, KIND, RECORD, RUNS, Case, Study, open_study
from histobench.consult.study_plan import ConsultRun
from histobench.core.errors import HistobenchError
from histobench.mint.agents.agent import Player
from histobench.mint.agents.agent_spec import AgentSpec, parse_agent
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.factory import Terms, open_player, player_name
from histobench.mint.configs.cell import NONE, Cell, check_model_name
from histobench.mint.configs.datasets import TaskDataset
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.prompts.first_message import OwnWording
from histobench.mint.results.stored_episode import FILE, WRITERS, read_episodes
from histobench.mint.runs.episode_queue import OpenPlayer
from histobench.mint.runs.parted_run import PartedRun
from histobench.mint.runs.planned_cell import PLACEBO, ExpertPlan, PlannedCell, plan_expert
from histobench.mint.runs.play import OpenDisplay, Played, agents_of, no_display, open_terms, play_cells
from histobench.mint.runs.run_options import RunOptions
from histobench.mint.runs.writers import Writer, check_alone
from histobench.mint.sandbox import check_sandbox
from histobench.mint.tasks.base import Task

TURNS = 5
ANSWERS = 2
Planned = list[tuple[PlannedCell, list[Task]]]


@dataclass(frozen=True)
class ConsultCell(PlannedCell):
    study: str = ""
    outcomes: bool = False

    def settings(self) -> dict[str, Any]:
        extra = {"outcomes": True} if self.outcomes else {}
        return {**super().settings(), "study": self.study, **extra}


def play(run: ConsultRun, *, display: OpenDisplay = no_display, writer: Writer | None = None) -> Played:
    study, planned, output = plan_run(run)
    cells = [cell for cell, _ in planned]
    if writer is None:
        check_alone(output)
    terms = open_terms(run.options, output, agents_of(cells), writer)
    outcome = play_cells(
        planned,
        run.options,
        output,
        terms,
        open_player=player_opener(study, terms),
        wording=OwnWording(),
        encyclopedia=None,
        withhold=[output, study.folder],
        display=display,
        writer=writer,
        runs_code=not run.is_policy,
    )
    return Played(output, tuple(cells), outcome)


class StudyRun(PartedRun):
    track = "consult"

    def play_part(
        self, options: RunOptions, more: Mapping[str, Any], writer: Writer, display: OpenDisplay
    ) -> Played:
        return play(ConsultRun(options=options, **more), display=display, writer=writer)


def plan_run(run: ConsultRun, *, elsewhere: bool = False) -> tuple[Study, Planned, Path]:
    """The study, the cells that are asked for with their episodes, and the folder of the results."""
    check_sandbox(run.options.sandbox)
    study = open_study(run.study)
    output = Path(run.options.output) if run.options.output else study.folder / RUNS
    arms = check_arms(study, run.arms, alone=not elsewhere)
    if run.options.repeat > 1 and set(arms) & set(SEQUENCE_ARMS):
        raise HistobenchError(
            "sequences are repeats of each other and are played once: run the arms sequence and "
            "sequence-same without `repeat`"
        )
    return study, plan_cells(study, arms, run, output), output


def check_arms(study: Study, text: str, *, alone: bool = True) -> list[str]:
    """Return the arms that a list names; `all` is every prepared arm that needs no expert model."""
    known = [arm for arm in study.facts.arms if arm in ARMS]
    if text.strip() == "all":
        return [arm for arm in known if arm != "expert" and (alone or arm not in SEQUENCE_ARMS)]
    arms = named_arms(text, known)
    if not alone and set(arms) & set(SEQUENCE_ARMS):
        raise HistobenchError("sequences are played in one process: give `engine` local")
    return arms


def plan_cells(study: Study, arms: Sequence[str], run: ConsultRun, output: Path) -> Planned:
    """A cell for each arm with its episodes; notes of earlier ones are read from `output`."""
    text = run.options.agent or ""
    if text in POLICIES:
        raise HistobenchError(f"unknown agent {text!r}; did you mean {KIND}:{text}?")
    agent = parse_policy(text) if run.is_policy else parse_agent(text)
    name = run.options.name or (f"{KIND}-{agent.target}" if run.is_policy else player_name(agent))
    model = check_model_name(name)
    asked = plan_expert(run.expert, FeedbackKind()) if run.expert else None
    pictures = study.pictures() if run.pictures else {}
    cases = limited(study, run.options.limit)
    planned: Planned = []
    for arm in arms:
        expert, expert_name = _adviser(arm, asked)
        sequential = arm in SEQUENCE_ARMS
        name = f"{study.facts.dataset}@{arm}".replace("/", "_")
        cell = Cell(
            f"{model}+pictures" if run.pictures else model,
            FAMILY,
            name,
            feedback_model=expert_name,
            feedback_type=expert.kind.name if expert else NONE,
            max_steps=TURNS + sequential,
            max_propose_solution=ANSWERS + sequential,
            calls=run.how_called,
        )
        tasks: list[Task] = [ConsultTask(study, case, arm, pictures.get(case.id)) for case in cases]
        if sequential:
            tasks = _sequence_tasks(study, arm, run, pictures, output, cell.path)
        consulting = ConsultCell(
            cell,
            TaskDataset(name, ConsultTask, FAMILY),
            agent,
            run.sampling,
            expert,
            study=study.fingerprint,
            outcomes=sequential and run.outcomes,
        )
        planned.append((consulting, tasks))
    return planned


def limited(study: Study, limit: int | None) -> list[Case]:
    if limit is None:
        return list(study.cases)
    order = random_order([case.reference for case in study.cases], seed=study.facts.seed)
    return [study.cases[place] for place in order[:limit]]


def _sequence_tasks(
    study: Study, arm: str, run: ConsultRun, pictures: dict[str, Path], output: Path, place: str
) -> list[Task]:
    sequences, limit = study.facts.sequences, run.options.limit
    if limit is not None:
        sequences = sequences[: max(1, limit // max(len(sequences[0]), 1))]
    kept: dict[tuple[int, int], Kept] = {}
    for file in [output / place / FILE, *sorted((output / WRITERS).glob(f"*/{place}/{FILE}"))]:
        for episode in read_episodes(file) if file.is_file() else ():
            record = episode.task["metadata"][RECORD]
            right = (record["final"] or {}).get("label") == episode.task["reference"]
            kept[record["sequence"], record["position"]] = Kept(record["notes"], right)
    memory = SequenceMemory([len(each) for each in study.facts.sequences], kept, outcomes=run.outcomes)
    return [
        ConsultTask(study, study.by_id[step.case], arm, pictures.get(step.case), step=step, memory=memory)
        for step in steps_of(arm, sequences, study.facts.replaced_by)
    ]


def player_opener(study: Study, terms: Terms) -> OpenPlayer:
    models = PolicyModels(study)

    def open_one(spec: AgentSpec, sampling: Sampling, as_expert: bool) -> Player:
        if spec.kind == KIND:
            return PolicyPlayer(study, spec.target, models)
        return open_player(spec, terms, sampling=sampling, as_expert=as_expert)

    return open_one


def _adviser(arm: str, expert: ExpertPlan | None) -> tuple[ExpertPlan | None, str]:
    if arm == PLACEBO:
        return ExpertPlan(FeedbackKind(False, "placebo")), PLACEBO
    if arm == "expert":
        if expert is None:
            raise HistobenchError("the arm expert needs an expert: give `expert` AGENT")
        return expert, player_name(expert.spec, as_expert=True) if expert.spec else NONE
    return None, NONE
