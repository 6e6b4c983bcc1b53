"""Slurm jobs do the units: one that prepares, an array that computes, an array that evaluates, a collector.

Every task of an array runs the same loop over the same folder and takes what is not done and not claimed, so
that a task that is requeued, or comes late, finds its share. Nothing has to stay on the login node.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from histobench.core.atomic import write_json, write_text
from histobench.core.errors import HistobenchError
from histobench.core.reading import read_note
from histobench.roi.work.engines.engine import Display
from histobench.roi.work.run_folder import RunFolder
from histobench.roi.work.unit import Unit

#: Tasks of an array have at least this much estimated work: shorter jobs waste a scheduler.
TASK_SECONDS = 15 * 60
#: An evaluation of one task, about, for the size of the array.
EVALUATION_SECONDS = 30
MOST_TASKS = 1000
#: Seconds before the time limit at which a task is told to come to an end and is queued again.
NOTICE = 120
#: How often a task that was killed is queued again.
RESTARTS = 3
JOBS = "slurm.json"
#: Our own option: how many tasks an array has, instead of an estimate.
TASKS = "tasks"
#: What is set by the engine itself.
_OWN = {
    "array",
    "dependency",
    "job-name",
    "output",
    "error",
    "open-mode",
    "requeue",
    "signal",
    "parsable",
    "wrap",
}


def read_options(text: str | None, flag: str) -> dict[str, str]:
    """`partition=gpu,gres=gpu:1` as options of sbatch.

    >>> read_options("partition=gpu,gres=gpu:1", "--slurm")
    {'partition': 'gpu', 'gres': 'gpu:1'}
    """
    options: dict[str, str] = {}
    for item in filter(None, (text or "").split(",")):
        key, equals, value = item.strip().lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key) or not equals or not value or "\n" in value:
            raise HistobenchError(f"{flag}: expected key=value such as partition=gpu, found {item!r}")
        if key in _OWN:
            raise HistobenchError(f"{flag}: {key} is set by histobench itself")
        options[key] = value
    return options


class SlurmEngine:
    """Submits jobs with `sbatch` and returns; `options` are those of jobs that need the device."""

    name = "slurm"
    whole = False

    def __init__(self, options: Mapping[str, str], cpu_options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._tasks = _number(self._options.pop(TASKS, None))
        self._cpu_tasks = _number(cpu_options.get(TASKS)) or self._tasks
        devices = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
        shared = {key: value for key, value in self._options.items() if key not in devices}
        self._cpu_options = {key: value for key, value in {**shared, **cpu_options}.items() if key != TASKS}

    def check(self) -> None:
        """Whether there is a Slurm here, and it answers; options are tried by a test submission."""
        for options in (self._options, self._cpu_options):
            _sbatch(["--test-only", *_flags(options), "--wrap", "true"])

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Submit the jobs; they go on without this process."""
        logs = folder.path / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        units = folder.units()
        planning = [unit for unit in units if unit.kind == "prepare"]
        computing = _tasks(sum(unit.seconds or 0.0 for unit in units if unit.kind == "features"))
        evaluating = [unit for unit in units if unit.kind in ("evaluate", "splits")]
        steps: list[tuple[str, Sequence[str], Mapping[str, str], int, str]] = [
            ("prepare", ("prepare",), self._options, min(len(planning), MOST_TASKS), ""),
            ("shards", ("shards",), self._options, self._tasks or computing, "afterany"),
            (
                "evaluate",
                ("features", "evaluate", "splits"),
                self._cpu_options,
                self._cpu_tasks or _tasks(EVALUATION_SECONDS * len(evaluating)),
                "afterany",
            ),
            ("collect", ("collect",), self._cpu_options, 1, "afterany"),
        ]
        jobs: dict[str, str] = {}
        before = ""
        for name, kinds, options, tasks, relation in steps:
            script = folder.path / "jobs" / f"{name}.sh"
            write_text(script, _script(folder, kinds))
            flags = [
                "--parsable",
                f"--job-name=histobench-{name}",
                f"--array=0-{tasks - 1}",
                f"--output={logs.absolute()}/{name}-%a.log",
                "--open-mode=append",
                "--requeue",
                f"--signal=B:USR1@{NOTICE}",
                *([f"--dependency={relation}:{before}"] if before else []),
                *_flags(options),
            ]
            before = _sbatch([*flags, str(script.absolute())]).partition(";")[0]
            jobs[name] = before
            display.say(f"job {before}: {name}")
        write_json(folder.path / JOBS, jobs)
        return False


def queued(folder: RunFolder) -> dict[str, int]:
    """Jobs of a run that are queued or running, by step; empty where Slurm does not answer."""
    jobs = read_note(folder.path / JOBS) or {}
    found: dict[str, int] = {}
    for name, job in jobs.items():
        try:
            done = subprocess.run(
                ["squeue", "--noheader", "--array", "--jobs", str(job), "--format=%T"],
                capture_output=True,
                text=True,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.split():
            found[name] = len(done.stdout.split())
    return found


def _tasks(seconds: float) -> int:
    """How many tasks share so much work.

    >>> _tasks(0), _tasks(3600), _tasks(1e9)
    (1, 4, 1000)
    """
    return min(MOST_TASKS, max(1, math.floor(seconds / TASK_SECONDS)))


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TASKS:
        raise HistobenchError(f"`slurm`: tasks must be a number from 1 to {MOST_TASKS}, found {text!r}")
    return int(text)


def _flags(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _script(folder: RunFolder, kinds: Sequence[str]) -> str:
    """A job that runs the loop in the environment of the submission."""
    command = [sys.executable, "-m", "histobench.cli.main", "work", str(folder.path.absolute())]
    kept = {name: os.environ[name] for name in ("HISTOBENCH_CACHE", "HISTOBENCH_LOCAL") if name in os.environ}
    kept["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    lines = [
        "#!/bin/bash",
        *(f"export {name}={shlex.quote(value)}" for name, value in kept.items()),
        f"cd {shlex.quote(os.getcwd())}",
        # bash passes no signal on to a child in the foreground.
        f"{shlex.join([*command, '--kinds', ','.join(kinds)])} &",
        "child=$!",
        'requeue() { scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"; exit 0; }',
        "trap 'kill -TERM $child 2>/dev/null; wait $child; requeue' USR1",
        "trap 'kill -TERM $child 2>/dev/null; wait $child; exit 143' TERM",
        "wait $child; code=$?",
        # Killed, out of memory, a machine in trouble: another attempt, though not for ever.
        f'[ $code -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS} ] && requeue',
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _sbatch(arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(["sbatch", *arguments], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise HistobenchError(
            "`engine` slurm needs sbatch, which is not here: run it on a login node"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HistobenchError(f"Slurm does not answer: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise HistobenchError(f"Slurm refused the job: {said}")
    return done.stdout.strip()


def log_of(folder: RunFolder, unit: Unit) -> Path:
    """Where the tasks that do units of this kind write."""
    steps = {"prepare": "prepare", "shards": "shards"}
    return folder.path / "logs" / f"{steps.get(unit.kind, 'evaluate')}-*.log"
