"""Play one part of a run: what the jobs of `histobench consult run --engine slurm` call on their nodes.

On SIGTERM and SIGUSR1 it keeps what is finished, and exits with code 143.

Examples:
  histobench consult part study/runs/writers/runs/20261116-101500-ab12cd.json 0
"""

from __future__ import annotations

import argparse

from histobench.cli.mint_part import add_arguments as add_arguments
from histobench.cli.mint_part import run_part


def run(args: argparse.Namespace) -> int:
    """Play what is missing of the part."""
    from histobench.consult.playing import play_part

    return run_part(args, play_part)
