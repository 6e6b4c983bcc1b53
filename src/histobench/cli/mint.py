"""The language-model track: agents that solve tasks in several turns with tools, code and feedback.

Examples:
  histobench mint run                            a small local model on a few built-in tasks
  histobench mint replay recordings/             prove this installation on recorded episodes
  histobench mint rescore outputs/ --rule strict another scoring rule for finished runs
  histobench mint table outputs/                 the leaderboard
  histobench mint configs configs/               the published experiment matrix as JSON files
"""

from __future__ import annotations

import argparse
import importlib

#: sub-verb -> (module, what it does). The module has `add_arguments(parser)` and `run(args) -> int | None`.
JOBS: dict[str, tuple[str, str]] = {
    "run": ("histobench.cli.mint_run", "a language model on tasks, with or without expert feedback"),
    "replay": ("histobench.cli.mint_replay", "prove loop, sandbox, tools and checkers on recorded episodes"),
    "rescore": ("histobench.cli.mint_rescore", "apply a scoring rule to finished runs"),
    "table": ("histobench.cli.mint_table", "the leaderboard of result folders and outcome tables"),
    "compare": ("histobench.cli.mint_compare", "two agents on the same tasks, with a paired test"),
    "configs": ("histobench.cli.mint_configs", "write the experiment matrix as JSON files"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-parser for each job."""
    jobs = parser.add_subparsers(dest="job", required=True, metavar="{" + ",".join(JOBS) + "}")
    for name, (module, summary) in JOBS.items():
        loaded = importlib.import_module(module)
        job = jobs.add_parser(
            name,
            help=summary,
            description=loaded.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        loaded.add_arguments(job)


def run(args: argparse.Namespace) -> int | None:
    """Run the chosen job."""
    result: int | None = importlib.import_module(JOBS[args.job][0]).run(args)
    return result
