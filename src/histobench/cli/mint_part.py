"""Play one part of a run: what the jobs of `histobench mint run --engine slurm` call on their nodes.

On SIGTERM and SIGUSR1 it keeps what is finished, and exits with code 143.

Examples:
  histobench mint part mint-results/writers/runs/20261116-101500-ab12cd.json 0
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.mint_summary import INCOMPLETE
from histobench.cli.terminal import open_terminal, say
from histobench.cli.work import STOPPED

if TYPE_CHECKING:
    from histobench.mint.runs.parted_run import PlayPart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which part of which run."""
    parser.add_argument("file", help="the file that describes the run, in OUTPUT/writers/runs")
    parser.add_argument("number", type=int, help="the part, counted from 0")


def run(args: argparse.Namespace) -> int:
    """Play what is missing of the part."""
    from histobench.mint.runs.parted_run import play_part

    return run_part(args, play_part)


def run_part(args: argparse.Namespace, play: PlayPart) -> int:
    """Have a part played, to its end or to that of the job."""
    from histobench.cli.mint_progress import progress_display

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]

    def stop(*_: object) -> None:
        for number in signals:  # a second one must not disturb the end
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, stop)
    console = open_terminal(error=True)
    try:
        outcome = play(
            Path(args.file), args.number, lambda counter: progress_display(console, counter)
        ).outcome
    except KeyboardInterrupt:
        say("stopped; what was finished is kept")
        return STOPPED
    standing = outcome.standing
    say(f"{standing.done} of {standing.total} episodes of this part")
    for problem in (*outcome.problems, *([outcome.stopped] if outcome.stopped else [])):
        say(problem)
    return 0 if outcome.complete else INCOMPLETE
