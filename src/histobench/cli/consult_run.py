"""Let an agent play the cases of a study in some arms; what is finished is kept, and a killed run goes on.

Agents: policy:always-trust, policy:never-trust, policy:measurements, policy:reader, policy:rational,
policy:oracle, policy:random (reference agents that need no language model), and every agent of
`histobench mint run` (openai:MODEL, anthropic:MODEL, gemini:MODEL, local:, human, replay:FILE, ...).

Examples:
  histobench consult run study/ --agent policy:reader --arms all
  histobench consult run study/ --agent openai:gpt-4o-mini --arms none,strong,swap --calls native --max-cost 5
  histobench consult run study/ --agent openai:M@http://localhost:8000/v1 --arms none,strong --pictures
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.engine_flags import add_workers_arguments, check_engine_flags
from histobench.cli.flag_values import positive
from histobench.cli.mint_run import (
    CALLS,
    DEFAULT,
    add_model_arguments,
    add_provider_arguments,
)
from histobench.cli.mint_summary import INCOMPLETE
from histobench.cli.terminal import open_terminal

if TYPE_CHECKING:
    from histobench.consult.playing import Seat
    from histobench.consult.study import Study
    from histobench.mint.runs.planned_cell import PlannedCell
    from histobench.mint.runs.play import Display, Loaded, Played
    from histobench.mint.runs.run import RunOutcome
    from histobench.mint.runs.writers import Writer
    from histobench.mint.tasks.base import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who plays which arms, and where the episodes go."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    what = parser.add_argument_group("what is run")
    what.add_argument("--agent", required=True, help="who plays")
    what.add_argument(
        "--arms", default="all", help="arms, separated by commas (default: all without an expert)"
    )
    what.add_argument("--limit", type=positive, help="only the first N cases")
    what.add_argument(
        "--repeat",
        type=int,
        default=DEFAULT.repeat,
        help=f"play everything N times (default: {DEFAULT.repeat})",
    )
    what.add_argument(
        "--calls",
        choices=CALLS,
        help="how the agent acts: tags in its text, or calls of functions (default: text; policies: native)",
    )
    what.add_argument("--pictures", action="store_true", help="the agent sees the region and may look(box)")
    what.add_argument("--expert", help="the agent that gives feedback in the arm expert")
    what.add_argument("--name", help="the agent's name in folders and tables (default: the model's)")
    what.add_argument("-o", "--output", help="folder of the episodes (default: runs in the study)")
    what.add_argument(
        "--sandbox", default=DEFAULT.sandbox, help="auto, or one that `histobench doctor` lists"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT.concurrency,
        help=f"episodes at a time (default: {DEFAULT.concurrency})",
    )
    limits.add_argument("--max-cost", type=float, help="dollars after which nothing more is asked")
    add_model_arguments(parser.add_argument_group("advanced: how the model writes"), max_tokens=800)
    add_provider_arguments(parser.add_argument_group("advanced: the provider"))
    add_workers_arguments(parser.add_argument_group("advanced: where it runs (docs/scale.md)"))


def run(args: argparse.Namespace) -> int:
    """Play the missing episodes and say how it went."""
    from histobench.cli.mint_summary import print_summary

    if args.engine != "local":
        return _run_elsewhere(args)
    check_engine_flags(args)
    output, cells, outcome = play(args)
    print_summary(output, [cell.cell for cell in cells], outcome)
    return 0 if outcome.complete else INCOMPLETE


def play(
    args: argparse.Namespace, *, display: Display | None = None, writer: Writer | None = None
) -> tuple[Path, list[PlannedCell], RunOutcome]:
    """Play the missing episodes: where they are, what was planned and what has come of it."""
    from histobench.cli.mint_progress import progress_display
    from histobench.consult.playing import player_opener
    from histobench.mint.prompts.first_message import OwnWording
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.play import open_terms, play_cells
    from histobench.mint.runs.writers import check_alone

    options = RunOptions.of(args)
    study, planned, output = _planned(args)
    cells = [cell for cell, _ in planned]
    if writer is None:
        check_alone(output)
    terms = open_terms(options, output, cells, writer)
    outcome = play_cells(
        planned,
        options,
        output,
        terms,
        open_player=player_opener(study, terms),
        wording=OwnWording(),
        encyclopedia=None,
        withhold=[output, study.folder],
        display=display or partial(progress_display, open_terminal(error=True)),
        writer=writer,
    )
    return output, cells, outcome


def play_part(file: Path, number: int, display: Display) -> Played:
    """Play the part with this number, counted from 0, of a run that is shared out."""
    from histobench.mint.runs.parted_run import open_part
    from histobench.mint.runs.play import Played

    with open_part(file, number) as (run, writer):
        args = argparse.Namespace(**{**asdict(run.options), **run.more})
        output, cells, outcome = play(args, display=display, writer=writer)
    return Played(output, tuple(cells), outcome)


def _run_elsewhere(args: argparse.Namespace) -> int:
    """Have the parts of the run played by workers on other machines."""
    from histobench.cli.mint_workers import share_out
    from histobench.mint.runs.options import RunOptions

    def load() -> Loaded:
        _, planned, output = _planned(args)
        return planned, output

    more = {name: getattr(args, name) for name in ("arms", "pictures", "expert", "calls")}
    more["study"] = str(Path(args.study).absolute())
    return share_out(args, RunOptions.of(args), load, play_part, track="consult", more=more)


def _planned(args: argparse.Namespace) -> tuple[Study, list[tuple[PlannedCell, list[Task]]], Path]:
    """The study, the cells that are asked for with their cases, and the folder of the episodes."""
    from histobench.consult.playing import check_arms, plan_cells
    from histobench.consult.study import RUNS, open_study

    study = open_study(args.study)
    planned = plan_cells(study, check_arms(study, args.arms), _seat(args), limit=args.limit)
    return study, planned, Path(args.output) if args.output else study.folder / RUNS


def _seat(args: argparse.Namespace) -> Seat:
    from histobench.consult.playing import Seat
    from histobench.consult.policies import KIND, parse_policy, policy_name
    from histobench.mint.agents.factory import player_name
    from histobench.mint.agents.spec import parse_agent
    from histobench.mint.configs.cell import NONE, check_model_name
    from histobench.mint.feedback.kind import FeedbackKind
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.request import plan_expert

    is_policy = args.agent.startswith(f"{KIND}:")
    agent = parse_policy(args.agent) if is_policy else parse_agent(args.agent)
    name = args.name or (policy_name(agent) if is_policy else player_name(agent))
    expert = plan_expert(args.expert, FeedbackKind()) if args.expert else None
    calls = args.calls or ("native" if is_policy else "text")
    return Seat(
        agent,
        check_model_name(name),
        replace(RunOptions.of(args), calls=calls).sampling,
        calls=calls,
        sees=args.pictures,
        expert=expert,
        expert_name=player_name(expert.spec, as_expert=True) if expert and expert.spec else NONE,
    )
