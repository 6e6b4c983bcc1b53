"""Ray and Slurm: find or start a cluster, submit jobs, read their options."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.redaction import environment_without_keys

#: What names the folders of the cache; workers need the same.
FOLDERS = ("HISTOBENCH_CACHE", "HISTOBENCH_LOCAL", "XDG_CACHE_HOME")
#: Seconds within which a cluster has to answer at all.
KNOCK = 10.0


def connect(address: str | None = None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_disable_failure_signal_handler", "1")  # it prints a trace on SIGTERM
    try:
        import ray
    except ImportError as error:
        raise HistobenchError(f"`engine` ray needs Ray ({error}): pip install 'histobench[ray]'") from error
    if ray.is_initialized():
        return
    address = _that_answers(address)
    environment = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    for name in (*FOLDERS, "HF_HOME", "HF_HUB_OFFLINE"):
        if name in os.environ:
            environment[name] = os.environ[name]
    asked_to_end = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": environment},
            log_to_driver=False,
            include_dashboard=False if address in (None, "local") else None,
            logging_level="error",
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, asked_to_end)  # Ray has set its own
    except Exception as error:  # Ray has no class of its own for a node that does not start in time
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = address or "this machine"
        raise HistobenchError(f"no Ray cluster at {where}: {why}; `ray start --head` starts one") from error


def _that_answers(address: str | None) -> str | None:
    """The address to connect to. Ray itself waits for minutes before it says that no one is there."""
    place = _remembered() if address in (None, "auto") else str(address)
    if (error := no_answer(place)) is None:
        return address
    if address is None:
        return "local"  # of a cluster that has died Ray still knows the address: a new one is begun
    raise HistobenchError(
        f"no Ray cluster at {place}: {error}; `ray start --head` starts one, `ray_address` names it"
    ) from error


def no_answer(address: str) -> OSError | OverflowError | None:
    """Why no one answers at `host:port`; None where someone does, or where it is no such address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return None
    host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address
    try:
        with socket.create_connection((host, int(port)), timeout=KNOCK):
            return None
    except (OSError, OverflowError) as error:
        return error


def _remembered() -> str:
    """The cluster that `ray start` has begun on this machine; empty where there is none."""
    # Where Ray itself looks; batch systems often give a job a TMPDIR of its own.
    usual = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    file = Path(os.environ.get("RAY_TMPDIR", usual)) / "ray" / "ray_current_cluster"
    return file.read_text().strip() if file.is_file() else ""


#: Most tasks of an array.
MOST_TASKS = 1000
#: Seconds before the time limit at which a task is asked to come to an end and is queued again.
NOTICE = 120
#: How often a task that was killed is queued again, and one that reached its time limit.
RESTARTS, TIME_LIMITS = 3, 50
#: Our own option: how many tasks an array has, instead of an estimate.
TASKS = "tasks"
#: What is set by the engine itself.
_OWN = {"array", "dependency", "job-name", "output", "error", "open-mode", "requeue", "signal"}
_OWN |= {"parsable", "wrap"}


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
    if text is None:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TASKS:
        raise HistobenchError(f"`slurm`: tasks must be a number from 1 to {MOST_TASKS}, found {text!r}")
    return int(text)


def check_options(options: Mapping[str, str]) -> None:
    """Whether there is a Slurm here that would take a job with these options."""
    _sbatch(["--test-only", *_flags(options), "--wrap", "true"])


def submit_array(
    name: str, command: Sequence[str], *, tasks: int, options: Mapping[str, str], run: Path, after: str = ""
) -> str:
    """Queue an array whose tasks all run `histobench` with these arguments; return the number of the job.

    `queued_jobs` finds it by the name of the run. Slurm stores its environment, which has none of the keys.
    """
    text, logs = _script(command), run / "logs"
    # For people: Slurm is given the text, which no one else can change.
    write_text(run / "jobs" / f"{name}.sh", text)
    flags = [
        "--parsable",
        f"--job-name={job_name(name, run)}",
        f"--array=0-{tasks - 1}",
        f"--output={logs.absolute()}/{name}-%a.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{NOTICE}",
        *([f"--dependency=afterany:{after}"] if after else []),
        *_flags(options),
    ]
    return _sbatch(flags, text).partition(";")[0]


def job_name(step: str, run: Path) -> str:
    return f"histobench-{step}-{run.name}"


def queued_jobs(names: Sequence[str], *, strict: bool = False) -> Counter[tuple[str, str]]:
    """Ask Slurm once: (job name, job number) -> tasks; if `strict`, no answer is an error, else none."""
    try:
        output = _slurm(["squeue", "--noheader", "--array", "--name", ",".join(names), "--format=%j %F"])
    except FileNotFoundError:
        return Counter()
    except HistobenchError as error:
        if strict:
            raise HistobenchError(
                f"cannot ask Slurm whether jobs of an earlier run are queued: {error}"
            ) from error
        return Counter()
    return Counter((name, job) for name, job in map(str.split, output.splitlines()))


def take_back(jobs: Sequence[str]) -> str:
    """Cancel jobs that nothing would follow; what is to be said about them."""
    if not jobs:
        return ""
    try:
        _slurm(["scancel", *jobs])
        return "; what was queued before it is canceled"
    except (HistobenchError, OSError):
        return f"; cancel the others: scancel {' '.join(jobs)}"


def _flags(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _script(command: Sequence[str]) -> str:
    words = [sys.executable, "-m", "histobench.cli.main", *command]
    line = " ".join(word if word.startswith("$SLURM_") else shlex.quote(word) for word in words)
    kept = {name: os.environ[name] for name in FOLDERS if name in os.environ}
    kept["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    lines = [
        "#!/bin/bash",
        *(f"export {name}={shlex.quote(value)}" for name, value in kept.items()),
        f"cd {shlex.quote(os.getcwd())}",
        # bash passes no signal on to a child in the foreground.
        f"{line} &",
        "child=$!",
        'requeue() { [ "${SLURM_RESTART_COUNT:-0}" -lt $1 ] || {',
        'echo "stopped $1 times; what was finished is kept: run the command again to continue"; exit 1; }',
        'scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"; exit 0; }',
        f"trap 'kill -TERM $child 2>/dev/null; wait $child; requeue {TIME_LIMITS}' USR1",
        "trap 'kill -TERM $child 2>/dev/null; wait $child; exit 143' TERM",
        "wait $child; code=$?",
        # Killed, out of memory, a machine in trouble: another attempt, though not for ever.
        f"[ $code -gt 128 ] && requeue {RESTARTS}",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _sbatch(arguments: Sequence[str], script: str = "") -> str:
    try:
        return _slurm(["sbatch", *arguments], script).strip()
    except FileNotFoundError:
        message = "`engine` slurm needs sbatch, which is not here: run it on a login node"
        raise HistobenchError(message) from None


def _slurm(command: Sequence[str], given: str = "") -> str:
    """What a command of Slurm prints; an error says why it did nothing."""
    try:
        done = subprocess.run(
            command, env=environment_without_keys(), input=given, capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired as error:
        raise HistobenchError(f"Slurm does not answer: {error}") from error
    if done.returncode != 0:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise HistobenchError(f"Slurm refused {command[0]}: {message}")
    return done.stdout
