"""Jobs of Slurm: options as users write them, arrays of tasks that are queued again, and what is queued."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from histobench.core.atomic import write_text
from histobench.core.errors import HistobenchError

#: Most tasks of an array.
MOST_TASKS = 1000
#: Seconds before the time limit at which a task is told to come to an end and is queued again.
NOTICE = 120
#: How often a task that was killed is queued again.
RESTARTS = 3
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


def read_task_number(text: str | None) -> int:
    """The value of our own option `tasks`; 0 where it is not given."""
    if text is None:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TASKS:
        raise HistobenchError(f"`slurm`: tasks must be a number from 1 to {MOST_TASKS}, found {text!r}")
    return int(text)


def check_options(options: Mapping[str, str]) -> None:
    """Whether there is a Slurm here that would take a job with these options."""
    _sbatch(["--test-only", *_flags(options), "--wrap", "true"])


def submit_array(
    name: str,
    command: Sequence[str],
    *,
    tasks: int,
    options: Mapping[str, str],
    script: Path,
    logs: Path,
    after: str = "",
) -> str:
    """Queue an array whose tasks all run `histobench` with these arguments; gives the number of the job.

    `after` is a job whose end is waited for. A task is told of its time limit, and one that was killed is
    queued again. In `command` a shell variable such as `$SLURM_ARRAY_TASK_ID` is filled in by the task.
    """
    write_text(script, _script(command))
    flags = [
        "--parsable",
        f"--job-name=histobench-{name}",
        f"--array=0-{tasks - 1}",
        f"--output={logs.absolute()}/{name}-%a.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{NOTICE}",
        *([f"--dependency=afterany:{after}"] if after else []),
        *_flags(options),
    ]
    return _sbatch([*flags, str(script.absolute())]).partition(";")[0]


def queued_tasks(job: str, *, strict: bool = False) -> int:
    """Tasks of a job that wait or run; 0 where Slurm does not know it, or is not here, or does not answer.

    Several jobs are separated by commas. If `strict`, no answer is an error: the job may well be there.
    """
    command = ["squeue", "--noheader", "--array", "--jobs", job, "--format=%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return 0
    except (OSError, subprocess.TimeoutExpired) as error:
        if strict:
            raise HistobenchError(f"Slurm does not say whether job {job} is over: {error}") from error
        return 0
    if done.returncode == 0:
        return len(done.stdout.split())
    if strict and "invalid job id" not in done.stderr.lower():
        raise HistobenchError(
            f"Slurm does not say whether job {job} is over: {' '.join(done.stderr.split())}"
        )
    return 0


def take_back(jobs: Sequence[str]) -> str:
    """Cancel jobs that nothing would follow; what is to be said about them."""
    if not jobs:
        return ""
    try:
        done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, timeout=120)
        gone = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        gone = False
    return (
        "; what was queued before it is cancelled"
        if gone
        else f"; cancel the others: scancel {' '.join(jobs)}"
    )


def _flags(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _script(command: Sequence[str]) -> str:
    """A job that runs the command in the environment of the submission."""
    words = [sys.executable, "-m", "histobench.cli.main", *command]
    line = " ".join(word if word.startswith("$SLURM_") else shlex.quote(word) for word in words)
    kept = {name: os.environ[name] for name in ("HISTOBENCH_CACHE", "HISTOBENCH_LOCAL") if name in os.environ}
    kept["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    lines = [
        "#!/bin/bash",
        *(f"export {name}={shlex.quote(value)}" for name, value in kept.items()),
        f"cd {shlex.quote(os.getcwd())}",
        # bash passes no signal on to a child in the foreground.
        f"{line} &",
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
