"""The engine of one machine: this process, and more where much is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histobench.core.devices import free_memory, usable_cores
from histobench.core.files import files_below
from histobench.roi.encoders.own_name import elsewhere_path, names_features
from histobench.roi.features.cache.row_cache import KEY_BYTES
from histobench.roi.units.roi_run import EVALUATING, KINDS
from histobench.roi.units.unit_worker import UnitWorker
from histobench.work.engines import Display
from histobench.work.loop import work_through
from histobench.work.run_folder import RunFolder, Unit

#: Evaluations of one encoder and dataset for every process: fewer do not pay for its start.
LEAST_EACH = 4
#: Seconds that helpers have to end in.
PATIENCE = 10.0
#: Memory of a process: its libraries, and so many times the features that it evaluates.
LIBRARIES, COPIES = 512 * 2**20, 4


class LocalEngine:
    """No cluster; this process is the one worker, which others help where there are many evaluations."""

    name = "local"

    def check(self) -> None:
        """This process is always there."""

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Do the units in their order; where there are many evaluations, these last and side by side."""
        worker = UnitWorker(folder, display.progress, display.say)

        def around(hook: Callable[[], None]) -> Callable[[Sequence[Unit]], None]:
            return lambda units: hook() if units[0].kind in ("prepare", "shards") else None

        hooks: dict[str, Any] = {
            "before": around(display.before_extraction),
            "after": around(display.after_extraction),
        }
        try:
            if _processes(folder) > 1:
                computing = [kind for kind in KINDS if kind not in EVALUATING]
                work_through(folder, worker, kinds=computing, alone=True, **hooks)
                worker.close()
                processes = _fitting(folder, _processes(folder))
                with _helpers(folder, processes):
                    display.say(f"evaluating in {processes} processes")
                    work_through(folder, worker, kinds=EVALUATING)
            work_through(folder, worker, alone=True, **hooks)
        finally:
            worker.close()
            shutil.rmtree(folder.path / "cache", ignore_errors=True)  # of a run without a cache
        return True


def _processes(folder: RunFolder) -> int:
    """How many processes evaluate: a core each, unless that is on a GPU or there is little to do."""
    folder.refresh()
    left = [unit for unit in folder.units() if unit.kind == "evaluate" and folder.state(unit.id) is None]
    most = len({folder.batch_of(unit) for unit in left}) // LEAST_EACH
    if most <= 1:
        return 1
    import torch

    asked = left[0].spec["device"] or "cuda"
    on_gpu = asked == "mps" or (asked.startswith("cuda") and torch.cuda.is_available())
    # As far as this process was not asked to use fewer threads.
    return 1 if on_gpu else max(1, min(usable_cores(), torch.get_num_threads(), most))


def _fitting(folder: RunFolder, processes: int) -> int:
    """As many processes as there is memory for, each with the largest features of the run."""
    free, sizes = free_memory(), [0]
    for unit in folder.units():
        note = (folder.output(unit.id) or {}) if unit.kind == "prepare" else {}
        for encoder in note.get("encoders", ()):
            images = _size(folder.path / "images" / f"{unit.id}.keys") // KEY_BYTES
            sizes.append(4 * images * int(encoder["description"]["dim"]))
        if unit.kind == "features" and names_features(unit.encoder):
            place = elsewhere_path(unit.encoder)
            sizes.append(sum(map(_size, files_below(place, "", deep=False) if place.is_dir() else [place])))
    return processes if free is None else max(1, min(processes, free // (LIBRARIES + COPIES * max(sizes))))


def _size(path: str | Path) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


@contextmanager
def _helpers(folder: RunFolder, processes: int) -> Iterator[None]:
    """Processes that take evaluations as this one does; each, and this one, with its share of the threads."""
    import torch
    from threadpoolctl import threadpool_limits

    own = torch.get_num_threads()
    threads = max(1, own // processes)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    logs = folder.path / "logs"
    logs.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "histobench.cli.main", *folder.worker_arguments()]
    command += ["--kinds", ",".join(EVALUATING)]
    # Copies of one process import the libraries once, and end with this one. Elsewhere than on Linux a copy
    # may not use all libraries.
    shared = sys.platform == "linux"
    command += ["--processes", str(processes - 1)] if shared else []
    helpers = []
    try:
        for number in range(1, min(processes, 2) if shared else processes):
            with (logs / f"evaluating-{number}.log").open("wb") as log:
                helpers.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **limits},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # the copies end with it
                    )
                )
        torch.set_num_threads(threads)
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(own)
        _end(helpers)


def _end(helpers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Nothing is left to do, or this process was stopped: helpers stop at what they have in hand."""
    for helper in helpers:
        helper.terminate()
    for helper in helpers:
        try:
            helper.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()
