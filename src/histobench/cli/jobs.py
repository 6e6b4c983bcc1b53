"""Verbs that have jobs of their own, such as `histobench mint run`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

#: job -> (module, what it does). The module has `add_arguments(parser)` and `run(args) -> int | None`.
Jobs = Mapping[str, tuple[str, str]]


def add_jobs(parser: argparse.ArgumentParser, jobs: Jobs) -> None:
    """One sub-parser for each job."""
    parsers = parser.add_subparsers(dest="job", required=True, metavar="{" + ",".join(jobs) + "}")
    for name, (module, summary) in jobs.items():
        loaded = importlib.import_module(module)
        job = parsers.add_parser(
            name,
            help=summary,
            description=loaded.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        loaded.add_arguments(job)


def run_job(args: argparse.Namespace, jobs: Jobs) -> int | None:
    """Run the chosen job."""
    result: int | None = importlib.import_module(jobs[args.job][0]).run(args)
    return result
