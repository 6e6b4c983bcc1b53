"""Consult: does a language model use an image encoder well? The agent is fixed, the encoder is randomised.

Examples:
  histobench consult prepare crc.csv --encoders uni_v1,efficientnet-lite0,random-vit --out study/
  histobench consult run study/ --agent policy:reader --arms all
  histobench consult run study/ --agent openai:gpt-4o-mini --arms none,strong --max-cost 5
  histobench consult register study/ contrasts.json
  histobench consult table study/
  histobench consult compare study/ gpt-4o-mini policy-reader
  histobench consult power pilot/ gpt-4o-mini --delta 0.1
"""

from __future__ import annotations

import argparse

from histobench.cli.jobs import Jobs, add_jobs, run_job

JOBS: Jobs = {
    "prepare": ("histobench.cli.consult_prepare", "cases and a cassette of all tool answers from a dataset"),
    "register": (
        "histobench.cli.consult_register",
        "contrasts that the study is to make, before it is played",
    ),
    "run": ("histobench.cli.consult_run", "an agent, or a reference policy, on the cases of a study"),
    "table": ("histobench.cli.consult_table", "accuracy, trust, contrasts and cost, with intervals"),
    "power": ("histobench.cli.consult_power", "how many cases the next study needs, from a pilot"),
    "compare": ("histobench.cli.consult_compare", "two agents on the same cases, paired"),
    "part": ("histobench.cli.consult_part", "play one part of a run (what jobs on a cluster call)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-parser for each job."""
    add_jobs(parser, JOBS)


def run(args: argparse.Namespace) -> int | None:
    """Run the chosen job."""
    return run_job(args, JOBS)
