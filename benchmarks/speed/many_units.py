"""Count what many workers do to a shared folder, and what a plan of very many units costs.

python benchmarks/speed/many_units.py --workers 64 --units 640
python benchmarks/speed/many_units.py --workers 1000 --units 3000 --seconds 10
python benchmarks/speed/many_units.py --plan 1000000
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from histobench.roi.units.roi_run import RoiRun
from histobench.roi.units.status import status_of
from histobench.work import loop
from histobench.work.run_folder import RunFolder, Unit

#: Calls that reach the disk, by the kind of load.
CALLS = {"open": "open", "link": "write", "rename": "write", "unlink": "write", "utime": "write"}
CALLS |= {"replace": "write", "listdir": "list", "lstat": "look", "stat": "look", "mkdir": "write"}


class Finishes:
    """A worker that writes the output of a unit after a while."""

    def __init__(self, folder: RunFolder, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds

    def perform(self, units: Sequence[Unit]) -> None:
        for unit in units:
            time.sleep(self._seconds)
            self._folder.finish(unit, outcome="evaluated")

    def close(self) -> None:
        pass


def run(workers: int, count: int, seconds: float) -> None:
    """Let threads share the units of a real folder; claims know processes, so their files are counted."""
    calls: Counter[str] = Counter()
    for name in CALLS:
        original = getattr(os, name)

        def counted(*args: Any, _call: Any = original, _name: str = name, **options: Any) -> Any:
            if _name == "open" and len(args) > 1 and args[1] & os.O_CREAT:
                calls["files written"] += 1
            calls[_name] += 1
            return _call(*args, **options)

        setattr(os, name, counted)
    write_text = Path.write_text

    def written(path: Path, *args: Any, **options: Any) -> int:
        calls["files written"] += 1
        return write_text(path, *args, **options)

    Path.write_text = written  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as place:
        units = [Unit("evaluate", "d", str(number), {"preset": "eva"}) for number in range(count)]
        folder = RoiRun.create(Path(place), {"engine": "slurm"}, units)
        calls.clear()
        began = time.monotonic()
        threads = [
            threading.Thread(target=_work, args=(folder.path, seconds), daemon=True) for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        passed = time.monotonic() - began
        done = len(list((folder.path / "outputs").glob("*.json")))
    operations = sum(number for name, number in calls.items() if name in CALLS) + calls["files written"]
    print(f"{workers} workers, {done} of {count} units of {seconds} s in {passed:.1f} s")
    print(f"files written per unit: {calls['files written'] / count:.1f}")
    print(f"file operations per unit: {operations / count:.1f}, per second: {operations / passed:.0f}")
    print(dict(calls))


def _work(path: Path, seconds: float) -> None:
    folder = RoiRun(path)
    loop.work_through(folder, Finishes(folder, seconds), kinds=("evaluate",))


def plan(count: int) -> None:
    """Write, read and search a plan; each step in a process of its own, with its memory."""
    with tempfile.TemporaryDirectory() as place:
        for step in (_write, _ask, _search):
            process = multiprocessing.get_context("spawn").Process(target=step, args=(Path(place), count))
            process.start()
            process.join()


def _write(place: Path, count: int) -> None:
    began = time.process_time()
    units = [Unit("evaluate", "d", str(number), {"preset": "eva"}) for number in range(count)]
    RoiRun.create(place, {"engine": "slurm"}, units)
    _say(f"driver: plan of {count:,} units written", began)


def _ask(place: Path, _: int) -> None:
    began = time.process_time()
    status_of(place)
    _say("one status", began)


def _search(place: Path, _: int) -> None:
    began = time.process_time()
    folder = RoiRun.latest(place)
    assert folder is not None
    agenda = loop.Agenda(folder)
    _say("worker: plan read", began)
    began = time.process_time()
    with ExitStack() as stack:
        found = loop._claimed(folder, agenda, ("evaluate",), (), stack)
    _say(f"worker: search for work ({len(found)} found)", began)


def _say(what: str, began: float) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.process_time() - began
    print(f"{what}: {seconds:.2f} s of processor time, {memory:.2f} GiB at most", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--units", type=int, default=640)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--plan", type=int)
    args = parser.parse_args()
    if args.plan:
        plan(args.plan)
    else:
        run(args.workers, args.units, args.seconds)
