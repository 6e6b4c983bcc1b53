"""How far a run is: units done, running, failed and stale per dataset and encoder, speed and time left.

It reads files alone, so it works while jobs run, from any machine that sees the results folder.

Examples:
  histobench status results
"""

from __future__ import annotations

import argparse
from pathlib import Path

from histobench.cli.terminal import open_terminal

STATES = ("done", "running", "waiting", "stale", "failed", "blocked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A results folder."""
    parser.add_argument("results", help="the results folder of a run")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from rich.table import Table

    from histobench.roi.work.engines.slurm import queued
    from histobench.roi.work.run_folder import RunFolder
    from histobench.roi.work.status import status_of

    status = status_of(Path(args.results))
    console = open_terminal()
    table = Table(box=None, pad_edge=False)
    for column in ("dataset", "encoder", *STATES):
        table.add_column(column, justify="right" if column in STATES else "left", overflow="fold")
    for cell in status.cells:
        counts = (str(cell.states[state] or "-") for state in STATES)
        table.add_row(cell.dataset, cell.encoder, *counts)
    console.print(table)
    told = ", ".join(f"{status.states[state]} {state}" for state in STATES if status.states[state])
    console.print(f"{status.folder.name} (--engine {status.engine}): {told}", soft_wrap=True)
    if status.hosts:
        hosts = ", ".join(f"{host} ({count})" for host, count in sorted(status.hosts.items()))
        console.print(f"at work: {hosts}", soft_wrap=True)
    jobs = queued(RunFolder(status.folder)) if status.engine == "slurm" else {}
    if jobs:
        told = ", ".join(f"{count} {name}" for name, count in jobs.items())
        console.print(f"Slurm tasks queued or running: {told}", soft_wrap=True)
    if status.images_per_second is not None:
        console.print(f"{status.images} images computed, {status.images_per_second:.1f} images/s per worker")
    if status.seconds_left is not None:
        console.print(f"about {status.seconds_left / 60:.1f} min left at the pace so far")
    for cell in status.cells:
        for reason in cell.reasons:
            console.print(f"FAILED: {cell.dataset} x {cell.encoder}: {reason}", soft_wrap=True)
    for log in status.logs:
        console.print(f"log: {log}", soft_wrap=True)
    return 0
