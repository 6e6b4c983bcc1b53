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

from histobench.cli.jobs import Jobs, add_jobs, run_job

JOBS: Jobs = {
    "run": ("histobench.cli.mint_run", "a language model on tasks, with or without expert feedback"),
    "replay": ("histobench.cli.mint_replay", "prove loop, sandbox, tools and checkers on recorded episodes"),
    "rescore": ("histobench.cli.mint_rescore", "apply a scoring rule to finished runs"),
    "table": ("histobench.cli.mint_table", "the leaderboard of result folders and outcome tables"),
    "grade": ("histobench.cli.mint_grade", "answers graded by other models against a rubric"),
    "compare": ("histobench.cli.mint_compare", "two agents on the same tasks, with a paired test"),
    "export": ("histobench.cli.mint_export", "finished runs as a dataset folder, Inspect logs or traces"),
    "import": ("histobench.cli.mint_import", "Inspect logs of any benchmark as a table of outcomes"),
    "part": ("histobench.cli.mint_part", "play one part of a run (what jobs on a cluster call)"),
    "configs": ("histobench.cli.mint_configs", "write the experiment matrix as JSON files"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-parser for each job."""
    add_jobs(parser, JOBS)


def run(args: argparse.Namespace) -> int | None:
    """Run the chosen job."""
    return run_job(args, JOBS)
