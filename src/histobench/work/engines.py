"""Who gets the units of a run done: what an engine is, a Ray cluster, Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from histobench.core.errors import HistobenchError
from histobench.core.files import WORKER_PATIENCE, read_note, set_patience
from histobench.core.progress import Progress, Silent
from histobench.work import clusters
from histobench.work.loop import work_through
from histobench.work.run_folder import RunFolder, Unit


@dataclass(frozen=True)
class Display:
    """Where progress is shown; the two hooks make room for the bar of an extraction."""

    progress: Progress = field(default_factory=Silent)
    say: Callable[[str], None] = lambda text: None
    before_extraction: Callable[[], None] = lambda: None
    after_extraction: Callable[[], None] = lambda: None


class Engine(Protocol):
    """Gets units done, here or elsewhere; what was done is seen from their outputs alone."""

    @property
    def name(self) -> str:
        """As it is asked for."""

    def check(self) -> None:
        """Raise when there is nothing to run on, before anything is written."""

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Get every unit done; False where that goes on after this call, in jobs of their own."""


# Ray: actors, one per GPU, which keeps what it has loaded, and one per core. Each is a worker as on Slurm: it
# takes what is not done and not claimed.

#: A unit whose worker died so often is taken for the cause.
ATTEMPTS = 4
#: Seconds between two looks at the run and the cluster, and without any worker after which it is given up.
PAUSE, SILENT_SECONDS = 1.0, 120.0
#: Seconds without an answer of the cluster's head after which it is given up.
HEAD_SECONDS = 20.0
#: Seconds that idle workers have to tidy up in, all of them together.
CLOSING_SECONDS = 30.0


class RayWorker:
    """The actor: a worker in another process, perhaps on another machine."""

    def __init__(self, run: type[RunFolder], path: str, digest: str, place: str) -> None:
        set_patience(WORKER_PATIENCE)
        with contextlib.suppress(OSError):  # encoders may be given by a path from there
            os.chdir(place)
        self._folder = run(Path(path), digest)
        self._worker = self._folder.open_worker(Silent(), lambda _: None)

    def start(self, environment: Mapping[str, str]) -> tuple[str, int]:
        """Return host and process; keys come this way, for the cluster may store how an actor was made."""
        os.environ.update(environment)
        return socket.gethostname(), os.getpid()

    def work(self, kinds: Collection[str]) -> None:
        """Do units of these kinds, as long as some are to be done or others are at work."""
        work_through(self._folder, self._worker, kinds=kinds)

    def close(self) -> None:
        self._worker.close()


@dataclass
class _Slot:
    kinds: Collection[str]
    resources: Mapping[str, float]
    actor: Any = None
    task: Any = None
    process: tuple[str, int] | None = None  # of the actor, once it has started


class RayEngine:
    """Uses the cluster at `address`, else the one this machine is part of, else a new one on this machine."""

    name = "ray"

    def __init__(self, address: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._address = address
        #: Variables that workers get; they are written nowhere.
        self._environment = dict(environment or {})

    def check(self) -> None:
        clusters.connect(self._address)

    def run(self, folder: RunFolder, display: Display) -> bool:
        import ray

        set_patience(WORKER_PATIENCE)
        ended = threading.Event()
        head = str(getattr(ray.get_runtime_context(), "gcs_address", ""))  # a client of Ray has none
        threading.Thread(target=_watch_head, args=(head, ended), daemon=True).start()
        try:
            _Driver(folder, display, self._environment).run()
        finally:
            ended.set()
            set_patience(0.0)
            closing = threading.Thread(target=ray.shutdown, daemon=True)
            closing.start()
            closing.join(CLOSING_SECONDS)
        return True


def _watch_head(address: str, ended: threading.Event) -> None:
    """End this process in words when the head is gone: calls of Ray would block, and end it without any."""
    heard = time.monotonic()
    while not ended.wait(2.0):
        if clusters.no_answer(address) is None:
            heard = time.monotonic()
        elif time.monotonic() - heard > HEAD_SECONDS:
            os.write(
                2,
                b"error: the head of the Ray cluster does not answer; finished work is kept: start the "
                b"cluster again (`ray start --head`) and repeat the command\n",
            )
            os._exit(2)


class _Driver:
    def __init__(self, folder: RunFolder, display: Display, environment: Mapping[str, str]) -> None:
        self._folder, self._display, self._environment = folder, display, environment
        self._slots: list[_Slot] = []
        self._lost: Counter[str] = Counter()
        self._errors = self._left = 0
        self._alive = time.monotonic()

    def run(self) -> None:
        folder = self._folder
        try:
            while True:
                folder.refresh(read=False)
                every = [unit for unit in folder.units() if unit.kind in folder.kinds]
                left = {unit.id: unit for unit in every if folder.state(unit.id) is None}
                if not left:
                    return
                if len(left) != self._left:
                    self._left, self._errors = len(left), 0
                self._display.say(f"{len(every) - len(left)} of {len(every)} units done")
                self._reconcile(len(left))
                kinds = {unit.kind for unit in left.values()}
                for slot in self._slots:
                    if slot.task is None and not kinds.isdisjoint(slot.kinds):
                        self._start(slot)
                self._wait(left)
        finally:
            self._end(self._slots)

    def _reconcile(self, left: int) -> None:
        """As many slots as the cluster has room for now: nodes come and go."""
        import ray

        total = ray.cluster_resources()
        gpus, cores = int(total.get("GPU", 0)), int(total.get("CPU", 0))
        run = self._folder
        gpus = gpus if run.on_device else 0
        wanted = [_Slot(run.on_device, {"num_gpus": 1, "num_cpus": 1}) for _ in range(gpus)]
        # With GPUs the cores do the rest meanwhile; without, they do everything.
        kinds = tuple(kind for kind in run.kinds if kind not in run.on_device) if gpus else run.kinds
        wanted += [_Slot(kinds, {"num_gpus": 0, "num_cpus": 1}) for _ in range(min(cores - gpus, left))]
        self._slots += wanted[len(self._slots) :]
        while len(self._slots) > len(wanted) and self._slots[-1].task is None:
            self._end([self._slots.pop()])
        if wanted:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > SILENT_SECONDS:
            raise HistobenchError("the Ray cluster has no nodes left; what was finished is kept, run again")

    def _start(self, slot: _Slot) -> None:
        import ray

        if slot.actor is not None:
            slot.task = slot.actor.work.remote(slot.kinds)
            return
        run = self._folder
        actor = ray.remote(RayWorker).options(**slot.resources, max_restarts=0, max_task_retries=0)
        slot.actor = actor.remote(type(run), str(run.path.absolute()), run.digest, os.getcwd())
        slot.task = slot.actor.start.remote(self._environment)

    def _wait(self, left: Mapping[str, Unit]) -> None:
        import ray

        tasks = {slot.task: slot for slot in self._slots if slot.task is not None}
        for slot in tasks.values():
            if self._folder.patience is None and self._claims(slot, stale=True):
                ray.kill(slot.actor)  # it hangs: `ray.wait` sees the loss, and another takes the units
        time.sleep(PAUSE)
        ready, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=0) if tasks else ([], [])
        for task in ready:
            slot = tasks[task]
            try:
                slot.process, slot.task = ray.get(task) or slot.process, None  # `work` gives nothing
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                if slot.process is None:
                    self._note_error(_why_not_started(error))
                for name in filter(left.__contains__, self._claims(slot)):
                    self._lost[name] += 1
                    if self._lost[name] >= ATTEMPTS:
                        self._folder.fail(left[name], f"its worker died {ATTEMPTS} times (out of memory?)")
                self._end([slot])
            except ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", None) or error
                self._note_error(f"unexpected {type(cause).__name__}: {cause}")
                slot.task = None

    def _claims(self, slot: _Slot, *, stale: bool = False) -> list[str]:
        """The units that the process of a slot has claimed; with `stale` those it does not renew any more."""
        found = []
        for name in self._folder.claimed() if slot.process is not None else ():
            holder = self._folder.holder(name, even_stale=True) or {}
            if (holder.get("host"), holder.get("pid")) == slot.process and not (stale and "age" in holder):
                found.append(name)
        return found

    def _note_error(self, text: str) -> None:
        self._errors += 1
        if self._errors > ATTEMPTS * len(self._slots):
            raise HistobenchError(text)

    def _end(self, slots: Sequence[_Slot]) -> None:
        """Let go of the actors; those that are idle tidy up before, all at the same time."""
        import ray

        closing = [slot.actor.close.remote() for slot in slots if slot.process and slot.task is None]
        if closing:  # one that is gone by itself, or does not come to an end, keeps no one
            ray.wait(closing, num_returns=len(closing), timeout=CLOSING_SECONDS)
        for slot in slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
            slot.actor = slot.task = slot.process = None


def _why_not_started(error: Exception) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    if "low on memory" in lines[0]:
        return f"a node of the Ray cluster has no memory left: {lines[0]}"
    return f"workers do not start on the Ray cluster (is the same environment on every node?): {lines[-1]}"


# Slurm: arrays of jobs. Every task of an array runs the same loop over the same folder and takes what is not
# done and not claimed, so that a task that is queued again, or comes late, finds its share. Nothing has to
# stay on the login node.

#: Names of the jobs that runs have.
AGENTS = "agents"
STEPS = ("prepare", "shards", "evaluate", "collect", AGENTS)
#: Keys for the workers of a run, until it has ended.
KEYS = "keys.json"
_DEVICES = ("gres", "gpus", "gpus-per-node", "gpus-per-task")


class SlurmEngine:
    """Submits jobs with `sbatch` and returns; `cpu_options` are added for jobs without a device."""

    name = "slurm"

    def __init__(
        self,
        options: Mapping[str, str],
        cpu_options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = dict(environment or {})
        asked, asked_cpu = dict(options), dict(cpu_options or {})
        #: Tasks of an array, where that is asked for, by whether it needs the device.
        self.tasks = {True: clusters.read_task_number(asked.pop(clusters.TASKS, None))}
        self.tasks[False] = clusters.read_task_number(asked_cpu.pop(clusters.TASKS, None)) or self.tasks[True]
        self._options = {True: asked}
        if cpu_options is not None:
            shared = {key: value for key, value in asked.items() if key not in _DEVICES}
            self._options[False] = {**shared, **asked_cpu}

    def check(self) -> None:
        """Whether there is a Slurm here, and it answers; options are tried by a test submission."""
        for options in self._options.values():
            clusters.check_options(options)

    def run(self, folder: RunFolder, display: Display) -> bool:
        (folder.path / "logs").mkdir(parents=True, exist_ok=True)
        if self._environment:
            with open(os.open(folder.path / KEYS, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                json.dump(self._environment, file)
        jobs: list[str] = []
        for step in folder.steps():
            tasks = (self.tasks[step.on_device] if step.is_shared else 0) or step.tasks
            try:
                job = clusters.submit_array(
                    step.name,
                    [*folder.worker_arguments(), "--kinds", ",".join(step.kinds)],
                    tasks=tasks,
                    options=self._options[step.on_device],
                    run=folder.path,
                    after=jobs[-1] if jobs else "",
                )
            except HistobenchError as error:  # a limit on jobs of one user, or on tasks of an array
                remove_keys(folder)
                message = clusters.take_back(jobs)
                raise HistobenchError(f"{error} (the job {step.name} with {tasks} tasks){message}") from error
            jobs.append(job)
            display.say(f"job {job}: {step.name}")
        return False


def take_keys(folder: RunFolder) -> None:
    os.environ.update(read_note(folder.path / KEYS) or {})


def remove_keys(folder: RunFolder) -> None:
    with contextlib.suppress(OSError):
        (folder.path / KEYS).unlink()


def queued(folder: RunFolder) -> dict[str, int]:
    names = {clusters.job_name(step, folder.path): step for step in STEPS} if folder.engine == "slurm" else {}
    found: Counter[str] = Counter()
    for (name, _), tasks in clusters.queued_jobs(list(names)).items() if names else ():
        found[names[name]] += tasks
    return dict(found)
