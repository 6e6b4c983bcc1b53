"""Do the units of a run: what the jobs of `histobench run --engine slurm` call on their nodes.

It takes what is not done and not claimed by another worker until nothing is left. On SIGTERM or SIGUSR1 it
keeps what it has finished, leaves the rest to others, and exits with code 143.

Examples:
  histobench work results/work/runs/20261115-213000-ab12cd --kinds shards
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from histobench.cli.entry import USER_ERROR
from histobench.cli.terminal import open_terminal, say
from histobench.core.errors import HistobenchError

STOPPED = 143


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder of a run, and which units to do."""
    parser.add_argument("folder", help="the folder of a run, in RESULTS/work/runs")
    parser.add_argument(
        "--kinds",
        default="",
        help="hash, prepare, shards, features, episodes, evaluate, splits, compare, report; by commas (all)",
    )


def run(args: argparse.Namespace) -> int:
    """Work until nothing is left."""
    from histobench.roi.work.loop import work_through
    from histobench.roi.work.run_folder import KINDS, REPORT, UNITS, RunFolder
    from histobench.roi.work.worker import StoppedError, Worker

    folder = RunFolder(Path(args.folder))
    if not (folder.path / UNITS).is_file():
        raise HistobenchError(f"{folder.path} is not the folder of a run: it has no {UNITS}")
    # `collect` was the name of the last kind, and may still stand in queued jobs.
    kinds = [REPORT if kind == "collect" else kind for kind in args.kinds.split(",") if kind]
    kinds = kinds or [*KINDS, REPORT]
    for kind in kinds:
        if kind not in (*KINDS, REPORT):
            raise HistobenchError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}, {REPORT}")
    progress = _Reports()
    for name in ("SIGTERM", "SIGUSR1"):  # Windows has only the first
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: progress.stop())
    worker = Worker(folder, progress, say)
    try:
        mine = [kind for kind in kinds if kind != REPORT]
        work_through(folder, worker, kinds=mine, stopped=lambda: progress.stopped)
    except StoppedError:
        pass
    finally:
        worker.close()
    if progress.stopped:
        say("stopped; what was finished is kept")
        return STOPPED
    return _collect(folder) if REPORT in kinds else 0


def _collect(folder: Any) -> int:
    from histobench.cli.run import print_outcome
    from histobench.roi.plan.benchmark import collect
    from histobench.roi.plan.run import note_speeds, outcome_of

    plan = folder.plan
    results = folder.results
    note_speeds(folder, results)
    outcome = outcome_of(folder, results)
    over_splits = any(unit.kind == "splits" for unit in folder.units())
    done = collect(
        outcome, n_bootstrap=plan.get("n_bootstrap"), over_splits=over_splits, say=say, heading="Summary"
    )
    return print_outcome(done, open_terminal()) and USER_ERROR


class _Reports:
    """Progress as lines of a log; asked to stop, it does so at the next batch."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        """At the next opportunity."""
        self.stopped = True

    def begin(self, what: str, total: int) -> None:
        """Say what is to be done."""
        say(f"{what}: {total} images")

    def advance(self, count: int) -> None:
        """Images are done; here a worker can come to an end."""
        from histobench.roi.work.worker import StoppedError

        if self.stopped:
            raise StoppedError

    def end(self) -> None:
        """Nothing to add."""

    def say(self, text: str) -> None:
        """A line."""
        say(text)
