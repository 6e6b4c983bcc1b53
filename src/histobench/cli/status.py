"""How far a run is: units done, running, failed and stale per dataset and encoder, speed and time left.

It reads files alone, so it works while jobs run, from any machine that sees the results folder.

Examples:
  histobench status results
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from histobench.cli.terminal import open_terminal, say
from histobench.core.text import shown

STATES = ("done", "running", "waiting", "stale", "failed", "blocked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A results folder."""
    parser.add_argument("results", help="the results folder of a run")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from histobench.roi.work.engines.slurm import queued
    from histobench.roi.work.run_folder import RunFolder
    from histobench.roi.work.status import status_of

    status = status_of(Path(args.results))
    console = open_terminal()
    rows: list[tuple[str, ...]] = [("dataset", "encoder", *STATES)]
    rows += [
        (cell.dataset, cell.encoder, *(str(cell.states[state] or "-") for state in STATES))
        for cell in status.cells
    ]
    for line in _columns(rows):
        say(line)
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
    for reason, count in sorted(status.not_staged.items()):
        console.print(f"{count} units read images where they are: {reason}", soft_wrap=True)
    for cell in status.cells:
        for reason in cell.reasons:
            console.print(f"FAILED: {cell.dataset} x {cell.encoder}: {reason}", soft_wrap=True)
    for log in status.logs:
        console.print(f"log: {log}", soft_wrap=True)
    return 0


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, numbers to the right; a plan of 20 x 59 has more rows than a drawn table is for."""
    from rich.cells import cell_len

    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    names = 2
    for row in cells:
        padded = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            padded.append(cell + space if place < names else space + cell)
        yield "  ".join(padded).rstrip()
