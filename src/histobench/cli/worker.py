"""`histobench worker`: what local processes and the jobs of a cluster run. It is not meant to be typed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from histobench.cli.entry import USER_ERROR
from histobench.cli.mint import INCOMPLETE
from histobench.cli.terminal import open_terminal, say
from histobench.core.errors import HistobenchError
from histobench.core.files import WORKER_PATIENCE, await_file, set_patience
from histobench.core.progress import Progress
from histobench.core.records import option, record
from histobench.roi.units.roi_run import REPORT, RoiRun
from histobench.work.run_folder import UNITS, RunFolder

STOPPED = 143
#: How a worker is asked to stop.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@record
class WorkerFlags:
    track: str = option(
        "the kind of run", default="", choices=("roi", "mint", "consult"), positional=True, required=True
    )
    path: str = option(
        "the folder of a run, in RESULTS/work/runs or OUTPUT/writers/runs",
        default="",
        positional=True,
        required=True,
    )
    digest: str = option("SHA-256 of the only list of units to work on", default="", default_text="any")
    kinds: tuple[str, ...] = option(
        "roi: prepare, shards, features, episodes, evaluate, splits, compare, report; mint and consult: play",
        default=(),
        default_text="all",
    )
    processes: int = option(
        "number of worker processes (Linux only)", default=0, least=0, default_text="this process"
    )


def worker_command(args: WorkerFlags) -> int:
    """Do a share of the work of a run.

    `histobench run`, `mint run` and `consult run` start workers as local
    processes, on Ray, or as Slurm jobs. A worker takes units that are not done and
    not claimed by another worker until none is left. On SIGTERM or SIGUSR1 it keeps
    what it has finished and exits with code 143.

    Examples:
      histobench worker roi results/work/runs/20261115-213000-ab12cd --kinds shards
      histobench worker mint mint-results/writers/runs/20261116-101500-ab12cd
    """
    folder = _run_of(args)
    if args.digest:  # started by an engine, perhaps on another machine than the one that wrote the run
        set_patience(WORKER_PATIENCE)
        await_file(folder.path / UNITS)
    if not (folder.path / UNITS).is_file():
        raise HistobenchError(f"{folder.path} is not the folder of a run: it has no {UNITS}")
    known = (*folder.kinds, *((REPORT,) if args.track == "roi" else ()))
    kinds = args.kinds or known
    for kind in kinds:
        if kind not in known:
            raise HistobenchError(f"unknown kind {kind!r}; known: {', '.join(known)}")
    if args.track != "roi":
        return _play_parts(folder)
    work = partial(_take_units, folder, [kind for kind in kinds if kind != REPORT])
    code = _side_by_side(work, args.processes) if args.processes else work()
    return _collect(folder) if REPORT in kinds and code == 0 else code


def _run_of(args: WorkerFlags) -> RunFolder:
    path = Path(args.path)
    if args.track == "roi":
        return RoiRun(path, args.digest)
    if args.track == "mint":
        from histobench.mint.runs.parted_run import PartedRun

        return PartedRun(path, args.digest)
    from histobench.consult.playing import StudyRun

    return StudyRun(path, args.digest)


def _take_units(folder: RunFolder, kinds: Sequence[str]) -> int:
    """Do units of these kinds until none is left, or this process is asked to stop."""
    from histobench.roi.units.unit_worker import WorkerStoppedError
    from histobench.work.loop import work_through

    progress = _LogLines()
    _on_stop(lambda number: progress.stop())
    worker = folder.open_worker(progress, say)
    try:
        work_through(folder, worker, kinds=kinds, stopped=lambda: progress.stopped)
    except WorkerStoppedError:
        pass
    finally:
        worker.close()
    if progress.stopped:
        say("stopped; what was finished is kept")
        return STOPPED
    return 0


def _play_parts(folder: Any) -> int:
    """Play parts of a run of agents; asked to stop, in the middle of episodes."""
    from histobench.cli.mint import progress_display
    from histobench.mint.runs.parted_run import PartWorker
    from histobench.work.engines import remove_keys, take_keys
    from histobench.work.loop import work_through

    def stop(_: int) -> None:
        for number in _SIGNALS:  # a second one must not disturb the end
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    folder.spec()  # a damaged run is an error before anything is played
    take_keys(folder)
    _on_stop(stop)
    worker = PartWorker(folder, partial(progress_display, open_terminal(error=True)), say)
    try:
        work_through(folder, worker, stopped=lambda: worker.ended)
    except KeyboardInterrupt:
        say("stopped; what was finished is kept")
        return STOPPED
    if all(folder.output(unit.id) is not None for unit in folder.units()):
        remove_keys(folder)
    return INCOMPLETE if worker.incomplete else 0


def _on_stop(then: Callable[[int], object]) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: then(number))


def _side_by_side(work: Callable[[], int], count: int) -> int:
    """The same in several copies of this process, which share what it has imported; the worst exit code.

    They stop when this process is asked to, and when the one that started it is gone.
    """
    starter, stops = os.getppid(), list[int]()
    _on_stop(stops.append)
    from histobench.roi.units import comparing, extraction  # noqa: F401 - once for all copies

    copies = [get_context("fork").Process(target=lambda: sys.exit(work())) for _ in range(count)]
    for copy in copies:
        copy.start()
    while left := [copy for copy in copies if copy.is_alive()]:
        if stops or os.getppid() != starter:  # more than once: a copy may not have been ready for the first
            for copy in left:
                copy.terminate()
        wait([copy.sentinel for copy in left], timeout=0.5)
    return max(abs(copy.exitcode or 0) for copy in copies)


def _collect(folder: Any) -> int:
    from histobench.cli.run import print_outcome
    from histobench.roi.plan.plan_run import note_speeds, outcome_of
    from histobench.roi.plan.whole_benchmark import collect

    note_speeds(folder, folder.results)
    outcome = outcome_of(folder, folder.results)
    done = collect(outcome, n_bootstrap=folder.plan.get("n_bootstrap"), say=say, heading="Summary")
    return print_outcome(done, open_terminal()) and USER_ERROR


class _LogLines(Progress):
    """Progress as lines of a log; asked to stop, it does so at the next batch."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def begin(self, what: str, total: int) -> None:
        say(f"{what}: {total} images")

    def advance(self, count: int) -> None:
        """Images are done; here a worker can come to an end."""
        from histobench.roi.units.unit_worker import WorkerStoppedError

        if self.stopped:
            raise WorkerStoppedError

    def say(self, text: str) -> None:
        say(text)
