"""Slurm jobs do the units: one that prepares, an array that computes, an array that evaluates, a collector.

For large datasets there is an array that hashes images before all of them.

Every task of an array runs the same loop over the same folder and takes what is not done and not claimed, so
that a task that is requeued, or comes late, finds its share. Nothing has to stay on the login node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from histobench.core import clusters
from histobench.core.errors import HistobenchError
from histobench.core.files import read_note, write_json
from histobench.roi.work.engines.local import Display
from histobench.roi.work.run_folder import REPORT, RunFolder, worker_arguments

#: Tasks of an array have at least this much estimated work: shorter jobs waste a scheduler.
TASK_SECONDS = 15 * 60
#: An evaluation of one task, about, for the size of the array.
EVALUATION_SECONDS = 30.0
JOBS = "slurm.json"


class SlurmEngine:
    """Submits jobs with `sbatch` and returns; `options` are those of jobs that need the device."""

    name = "slurm"
    whole = False

    def __init__(self, options: Mapping[str, str], cpu_options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._tasks = clusters.read_task_number(self._options.pop(clusters.TASKS, None))
        self._cpu_tasks = clusters.read_task_number(cpu_options.get(clusters.TASKS)) or self._tasks
        devices = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
        shared = {key: value for key, value in self._options.items() if key not in devices}
        self._cpu_options = {
            key: value for key, value in {**shared, **cpu_options}.items() if key != clusters.TASKS
        }

    def check(self) -> None:
        """Whether there is a Slurm here, and it answers; options are tried by a test submission."""
        for options in (self._options, self._cpu_options):
            clusters.check_options(options)

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Submit the jobs; they go on without this process."""
        logs = folder.path / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        units = folder.units()
        hashing = [unit.seconds or 0.0 for unit in units if unit.kind == "hash"]
        planning = [unit for unit in units if unit.kind == "prepare"]
        computing = _tasks(sum(unit.seconds or 0.0 for unit in units if unit.kind == "features"))
        evaluating = EVALUATION_SECONDS * sum(unit.kind in ("evaluate", "splits") for unit in units)
        evaluating += sum(unit.seconds or 0.0 for unit in units if unit.kind == "episodes")
        steps: list[tuple[str, Sequence[str], Mapping[str, str], int]] = [
            # What an array that was cut short has left, nobody else would hash, and preparing waits for it.
            (
                "prepare",
                ("hash", "prepare") if hashing else ("prepare",),
                self._options,
                min(len(planning), clusters.MOST_TASKS),
            ),
            ("shards", ("shards",), self._options, self._tasks or computing),
            (
                "evaluate",
                ("features", "episodes", "evaluate", "splits", "compare"),
                self._cpu_options,
                self._cpu_tasks or _tasks(evaluating),
            ),
            ("collect", ("compare", REPORT), self._cpu_options, 1),
        ]
        if hashing:
            steps.insert(0, ("hash", ("hash",), self._cpu_options, self._cpu_tasks or _tasks(sum(hashing))))
        jobs: dict[str, str] = {}
        known = {name: str(job) for name, job in (read_note(folder.path / JOBS) or {}).items()}
        earlier = {name: job for name, job in known.items() if clusters.queued_tasks(job)}
        before = ""
        for name, kinds, options, tasks in steps:
            try:
                before = clusters.submit_array(
                    name,
                    [*worker_arguments(folder), "--kinds", ",".join(kinds)],
                    tasks=tasks,
                    options=options,
                    script=folder.path / "jobs" / f"{name}.sh",
                    logs=logs,
                    after=before,
                )
            except HistobenchError as error:  # a limit on jobs of one user, or on tasks of an array
                told = clusters.take_back(list(jobs.values()))
                raise HistobenchError(f"{error} (the job {name} with {tasks} tasks){told}") from error
            jobs[name] = before
            every = {name: f"{earlier[name]},{job}" if name in earlier else job for name, job in jobs.items()}
            write_json(folder.path / JOBS, {**earlier, **every})
            display.say(f"job {before}: {name}")
        return False


def queued(folder: RunFolder) -> dict[str, int]:
    """Jobs of a run that are queued or running, by step; empty where Slurm does not answer."""
    jobs = read_note(folder.path / JOBS) or {}
    found = {name: clusters.queued_tasks(str(job)) for name, job in jobs.items()}
    return {name: tasks for name, tasks in found.items() if tasks}


def _tasks(seconds: float) -> int:
    """How many tasks share so much work.

    >>> _tasks(0), _tasks(3600), _tasks(1e9)
    (1, 4, 1000)
    """
    return min(clusters.MOST_TASKS, max(1, math.floor(seconds / TASK_SECONDS)))
