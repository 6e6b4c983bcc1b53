"""Let an agent play the cases of a study in some arms; what is finished is kept, and a killed run goes on.

Agents: policy:always-trust, policy:never-trust, policy:reader, policy:rational, policy:learner,
policy:oracle, policy:random (reference agents that need no language model), and every agent of
`histobench mint run` (openai:MODEL, anthropic:MODEL, gemini:MODEL, local:, human, replay:FILE, ...).

Examples:
  histobench consult run study/ --agent policy:reader --arms all
  histobench consult run study/ --agent openai:gpt-4o-mini --arms none,strong --calls native --max-cost 5
  histobench consult run study/ --agent openai:gpt-4o-mini --arms sequence,sequence-same --outcomes
  histobench consult run study/ --agent openai:M@http://localhost:8000/v1 --arms none,strong --pictures
"""

from __future__ import annotations

import argparse
from functools import partial
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

#: Flags that every worker of a run must know besides those of all runs of agents.
MORE = ("arms", "calls", "pictures", "expert", "outcomes")

if TYPE_CHECKING:
    from histobench.consult.playing import ConsultRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who plays which arms, and where the episodes go."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    what = parser.add_argument_group("what is run")
    what.add_argument("--agent", required=True, help="who plays")
    what.add_argument(
        "--arms", default="all", help="arms, separated by commas (default: all without an expert)"
    )
    what.add_argument(
        "--limit",
        type=positive,
        help="a random sample of N cases, classes in their shares (in sequence arms: whole sequences)",
    )
    what.add_argument(
        "--outcomes",
        action="store_true",
        help="in sequence arms, tell the agent after each case whether its final answer was right",
    )
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
    from histobench.cli.mint_progress import progress_display
    from histobench.cli.mint_summary import print_summary
    from histobench.consult.playing import play

    if args.engine != "local":
        return _run_elsewhere(args)
    check_engine_flags(args)
    played = play(asked_for(args), display=partial(progress_display, open_terminal(error=True)))
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    return 0 if played.outcome.complete else INCOMPLETE


def asked_for(args: argparse.Namespace) -> ConsultRun:
    """The run that the flags ask for."""
    from histobench.consult.playing import ConsultRun
    from histobench.mint.runs.options import RunOptions

    more = {name: getattr(args, name) for name in ("study", *MORE)}
    return ConsultRun(options=RunOptions.of(args), **more)


def _run_elsewhere(args: argparse.Namespace) -> int:
    """Have the parts of the run played by workers on other machines."""
    from histobench.cli.mint_workers import share_out
    from histobench.consult.playing import plan_run, play_part

    check_engine_flags(args)
    wanted = asked_for(args)
    study, planned, output = plan_run(wanted, elsewhere=True)
    more = {name: getattr(args, name) for name in MORE}
    more |= {
        "study": str(study.folder.absolute()),
        "arms": ",".join(cell.dataset.name.rpartition("@")[2] for cell, _ in planned),
    }
    return share_out(args, wanted.options, lambda: (planned, output), play_part, track="consult", more=more)
