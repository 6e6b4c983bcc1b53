"""Who gets the units of a run done: what an engine is, a Ray cluster, Slurm.

A worker, a node or the process that hands out units may be lost at any moment: whatever has no output is
handed out again. Engines decide nothing that a result depends on.
"""

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

from histobench.core.claim import Claim
from histobench.core.errors import HistobenchError
from histobench.core.files import WORKER_PATIENCE, read_note, set_patience
from histobench.core.progress import Progress, Silent
from histobench.work import clusters
from histobench.work.loop import Agenda
from histobench.work.run_folder import HUNG, RunFolder, Unit


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Display:
    """Where progress is shown; the two hooks make room for the bar of an extraction."""

    progress: Progress = field(default_factory=Silent)
    say: Callable[[str], None] = lambda text: None
    before_extraction: Callable[[], None] = _nothing
    after_extraction: Callable[[], None] = _nothing


class Engine(Protocol):
    """Gets units done, here or elsewhere; what was done is seen from their outputs alone."""

    @property
    def name(self) -> str:
        """As it is asked for."""

    def check(self) -> None:
        """Raise when there is nothing to run on, before anything is written."""

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Get every unit done; False where that goes on after this call, in jobs of their own."""


# Ray: actors, one per GPU, which keeps what it has loaded, and one per core.

#: A unit whose worker died so often is taken for the cause.
ATTEMPTS = 4
#: Seconds between two looks at the cluster, and without any worker after which it is given up.
PAUSE, SILENT_SECONDS = 0.2, 120.0
#: Seconds without an answer of the cluster's head after which it is given up.
HEAD_SECONDS = 20.0
#: Seconds between two looks at all outputs, and at what the cluster has.
REFRESHED, COUNTED = 30.0, 1.0
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

    def is_there(self, environment: Mapping[str, str]) -> bool:
        """An answer says that the cluster has had room for it.

        Keys come this way: what an actor is made with may be kept by the cluster, on disk too.
        """
        os.environ.update(environment)
        return True

    def perform(self, lines: list[str]) -> str:
        """Do the units of one batch; their outputs are in the folder. Gives the host."""
        with contextlib.ExitStack() as stack:
            mine = []
            for unit in map(Unit.from_line, lines):
                claim = self._claimed(unit)
                if claim is not None:
                    stack.callback(claim.release)
                if claim is not None or self._folder.patience is None:  # else it would be paid for twice
                    mine.append(unit)
            self._worker.perform([unit for unit in mine if self._folder.output(unit.id) is None])
        return socket.gethostname()

    def _claimed(self, unit: Unit) -> Claim | None:
        """The claim on a unit; where units cost money, that of a worker that may be dead is waited for."""
        end = time.monotonic() + (self._folder.patience or 0.0)
        while (claim := self._folder.claim(unit)) is None and time.monotonic() < end:
            time.sleep(PAUSE)
        return claim

    def close(self) -> None:
        """Let go of the device."""
        self._worker.close()


@dataclass
class _Slot:
    """A place for an actor: on a GPU, or on a core."""

    kinds: Collection[str]
    resources: Mapping[str, float]
    actor: Any = None
    is_open: bool = False  # the actor has answered
    task: Any = None
    batch: list[Unit] = field(default_factory=list)
    like: tuple[str, ...] = ()
    began: float = 0.0
    limit: float = HUNG


class RayEngine:
    """Uses the cluster at `address`, else the one this machine is part of, else a new one on this machine."""

    name = "ray"

    def __init__(self, address: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._address = address
        #: Variables that workers get; they are written nowhere.
        self._environment = dict(environment or {})

    def check(self) -> None:
        """Connect; one line where that is not possible."""
        clusters.connect(self._address)

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Hand out units until all have an output."""
        import ray

        set_patience(WORKER_PATIENCE)
        ended = threading.Event()
        threading.Thread(target=_watch_head, args=(clusters.head_address(), ended), daemon=True).start()
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
        if clusters.answers(address):
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
        self._folder = folder
        self._display = display
        self._environment = environment
        self._agenda = Agenda(folder)
        self._refreshed = self._counted = time.monotonic()
        self._slots: list[_Slot] = []
        self._lost: Counter[str] = Counter()
        self._not_started = 0
        self._alive = time.monotonic()

    def run(self) -> None:
        agenda = self._agenda
        try:
            self._reconcile()
            while True:
                now = time.monotonic()
                if agenda.is_stale or now - self._refreshed > REFRESHED:  # another driver may be at work
                    agenda.refresh()
                    self._refreshed = time.monotonic()
                if not agenda.left:
                    return
                self._display.say(f"{agenda.known - agenda.left} of {agenda.known} units done")
                if now - self._counted > COUNTED:
                    self._reconcile()
                    self._counted = now
                self._hand_out()
                self._wait()
        finally:
            self._end(self._slots)

    def _reconcile(self) -> None:
        """As many slots as the cluster has room for now: nodes come and go."""
        import ray

        total = ray.cluster_resources()
        gpus, cores = int(total.get("GPU", 0)), int(total.get("CPU", 0))
        run = self._folder
        gpus = gpus if run.on_device else 0
        wanted = [_Slot(run.on_device, {"num_gpus": 1, "num_cpus": 1}) for _ in range(gpus)]
        # With GPUs the cores do the rest meanwhile; without, they do everything.
        kinds = tuple(kind for kind in run.kinds if kind not in run.on_device) if gpus else run.kinds
        useful = min(cores - gpus, max(1, self._agenda.left))  # more would start for nothing
        wanted += [_Slot(kinds, {"num_gpus": 0, "num_cpus": 1}) for _ in range(useful)]
        for slot in wanted[len(self._slots) :]:
            self._slots.append(slot)
        while len(self._slots) > len(wanted) and self._slots[-1].task is None:
            self._end([self._slots.pop()])
        if wanted:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > SILENT_SECONDS:
            raise HistobenchError("the Ray cluster has no nodes left; what was finished is kept, run again")

    def _hand_out(self) -> None:
        barren: set[Collection[str]] = set()  # kinds of which nothing can be done just now
        for slot in self._slots:
            if slot.task is not None or slot.kinds in barren:
                continue
            batch = next(self._agenda.ready(slot.kinds, like=slot.like), [])
            if not batch:
                barren.add(slot.kinds)
                continue
            if slot.actor is None:
                self._open(slot)
                continue
            share = -(-len(batch) // len(self._slots))
            batch = batch[: self._folder.at_once.get(batch[0].kind, share)]
            self._agenda.take(batch)
            self._start(slot, batch)

    def _open(self, slot: _Slot) -> None:
        """Ask for an actor. It has no units before it answers: of two drivers that wait for room with units
        in their hands, neither would ever make any.
        """
        import ray

        actor = ray.remote(RayWorker).options(**slot.resources, max_restarts=0, max_task_retries=0)
        run = self._folder
        slot.actor = actor.remote(type(run), str(run.path.absolute()), run.digest, os.getcwd())
        slot.task, slot.batch = slot.actor.is_there.remote(self._environment), []

    def _start(self, slot: _Slot, batch: list[Unit]) -> None:
        slot.batch, slot.like, slot.began = batch, self._folder.batch_of(batch[0]), time.monotonic()
        slot.limit = max(HUNG, 10 * sum(unit.seconds or 0.0 for unit in batch))
        slot.task = slot.actor.perform.remote([unit.as_line() for unit in batch])

    def _wait(self) -> None:
        import ray

        tasks = {slot.task: slot for slot in self._slots if slot.task is not None}
        if not tasks:
            time.sleep(PAUSE)
            return
        ready, _ = ray.wait(list(tasks), num_returns=1, timeout=1.0)
        for slot in tasks.values():
            if self._folder.patience is None and slot.batch and time.monotonic() - slot.began > slot.limit:
                ray.kill(slot.actor)  # it hangs: `ray.wait` sees the loss, and the units go to another
        for task in ready:
            slot = tasks[task]
            try:
                ray.get(task)
                slot.is_open, self._not_started = True, 0
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                if not slot.is_open:
                    self._note_no_start(error)
                self._end([slot])
                self._note_loss(slot, f"its worker died {ATTEMPTS} times (out of memory?)")
            except ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", None) or error
                self._note_loss(slot, f"unexpected {type(cause).__name__}: {cause}")
            self._agenda.note(slot.batch)
            slot.task, slot.batch = None, []

    def _note_loss(self, slot: _Slot, reason: str) -> None:
        """Units without an output are handed out again, though not for ever."""
        for unit in slot.batch:
            if self._folder.output(unit.id) is None:
                self._lost[unit.id] += 1
                if self._lost[unit.id] >= ATTEMPTS:
                    self._folder.fail(unit, reason)

    def _note_no_start(self, error: Exception) -> None:
        self._not_started += 1
        if self._not_started > ATTEMPTS * len(self._slots):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            if "low on memory" in lines[0]:
                raise HistobenchError(f"a node of the Ray cluster has no memory left: {lines[0]}")
            raise HistobenchError(
                "workers do not start on the Ray cluster (is the same environment on every node?): "
                f"{lines[-1]}"
            )

    def _end(self, slots: Sequence[_Slot]) -> None:
        """Let go of the actors; those that are idle tidy up before, all at the same time."""
        import ray

        idle = [slot for slot in slots if slot.actor is not None and slot.is_open and slot.task is None]
        closing = [slot.actor.close.remote() for slot in idle]
        if closing:  # one that is gone by itself, or does not come to an end, keeps no one
            ray.wait(closing, num_returns=len(closing), timeout=CLOSING_SECONDS)
        for slot in slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
            slot.actor, slot.is_open, slot.like = None, False, ()


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
    """Submits jobs with `sbatch` and returns; `options` are those of jobs that need the device.

    `cpu_options` are added to them, without the device, for other jobs; where there are none, leave them out.
    `environment` are variables that workers get from a file that only its owner can read.
    """

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
        """Submit the jobs; they go on without this process."""
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
    """Add the variables that the submission left for its workers to the environment."""
    os.environ.update(read_note(folder.path / KEYS) or {})


def remove_keys(folder: RunFolder) -> None:
    """Remove them; nothing happens where there are none."""
    with contextlib.suppress(OSError):
        (folder.path / KEYS).unlink()


def queued(folder: RunFolder) -> dict[str, int]:
    """Return the steps of a run that are queued or running, with their tasks."""
    if folder.engine != "slurm":
        return {}
    names = {clusters.job_name(step, folder.path): step for step in STEPS}
    found: Counter[str] = Counter()
    for (name, _), tasks in clusters.queued_jobs(list(names)).items():
        found[names[name]] += tasks
    return dict(found)
