"""A Ray cluster does the units: an actor per GPU keeps encoders loaded, the other cores evaluate.

The driver hands out units and looks at their outputs; it decides nothing that a result depends on. A worker,
a node or the driver may be lost at any moment: whatever has no output is handed out again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.core.clusters import connect
from histobench.core.errors import HistobenchError
from histobench.roi.work.engines.local import Display
from histobench.roi.work.loop import AT_ONCE, Agenda, claim_unit
from histobench.roi.work.run_folder import COMPUTING, KINDS, RunFolder, Unit, same_batch

#: A unit whose worker died so often is taken for the cause.
ATTEMPTS = 4
#: Seconds between two looks at the cluster, and without any worker after which it is given up.
PAUSE, SILENT_SECONDS = 0.2, 120.0
#: Seconds between two looks at all outputs, and at what the cluster has.
REFRESHED, COUNTED = 30.0, 1.0
#: Seconds that idle workers have to tidy up in, all of them together.
CLOSING_SECONDS = 30.0


class RayWorker:
    """The actor: a worker in another process, perhaps on another machine."""

    def __init__(self, folder: str, digest: str, place: str) -> None:
        with contextlib.suppress(OSError):  # encoders may be given by a path from there
            os.chdir(place)
        from histobench.core.progress import Silent
        from histobench.roi.work.worker import Worker

        self._folder = RunFolder(Path(folder), digest)
        self._worker = Worker(self._folder, Silent())

    def is_there(self) -> bool:
        """An answer says that the cluster has had room for it."""
        return True

    def perform(self, lines: list[str]) -> str:
        """Do the units of one batch; their outputs are in the folder. Gives the host."""
        from contextlib import ExitStack

        with ExitStack() as stack:
            units = [Unit.from_line(line) for line in lines]
            for unit in units:
                claim = claim_unit(self._folder, unit)  # for `status`; what another driver does is done twice
                if claim is not None:
                    stack.callback(claim.release)
            self._worker.perform([unit for unit in units if self._folder.output(unit.id) is None])
        return socket.gethostname()

    def close(self) -> None:
        """Let go of the device, and of copies on this machine's disk."""
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


class RayEngine:
    """Uses the cluster at `address`, else the one this machine is part of, else a new one on this machine."""

    name = "ray"
    whole = False
    #: What does the units of one slot.
    actor: type = RayWorker

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def check(self) -> None:
        """Connect; one line where that is not possible."""
        connect(self._address)

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Hand out units until all have an output."""
        import ray

        try:
            _Driver(folder, display, self.actor).run()
        finally:
            ray.shutdown()
        return True


class _Driver:
    def __init__(self, folder: RunFolder, display: Display, actor: type) -> None:
        self._folder = folder
        self._display = display
        self._actor = actor
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
        wanted = [_Slot(("hash", *COMPUTING), {"num_gpus": 1, "num_cpus": 1}) for _ in range(gpus)]
        # With GPUs the cores evaluate meanwhile; without, they do everything.
        kinds = tuple(kind for kind in KINDS if kind not in COMPUTING) if gpus else KINDS
        wanted += [_Slot(kinds, {"num_gpus": 0, "num_cpus": 1}) for _ in range(max(0, cores - gpus))]
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
            kind = batch[0].kind
            share = -(-len(batch) // len(self._slots)) if kind == "evaluate" else len(batch)
            batch = batch[: AT_ONCE.get(kind, share)]
            self._agenda.take(batch)
            self._start(slot, batch)

    def _open(self, slot: _Slot) -> None:
        """Ask for an actor. It has no units before it answers: of two drivers that wait for room with units
        in their hands, neither would ever make any.
        """
        import ray

        actor = ray.remote(self._actor).options(**slot.resources, max_restarts=0, max_task_retries=0)
        slot.actor = actor.remote(str(self._folder.path.absolute()), self._folder.digest, os.getcwd())
        slot.task, slot.batch = slot.actor.is_there.remote(), []

    def _start(self, slot: _Slot, batch: list[Unit]) -> None:
        slot.batch, slot.like = batch, same_batch(batch[0])
        slot.task = slot.actor.perform.remote([unit.as_line() for unit in batch])

    def _wait(self) -> None:
        import ray

        tasks = {slot.task: slot for slot in self._slots if slot.task is not None}
        if not tasks:
            time.sleep(PAUSE)
            return
        ready, _ = ray.wait(list(tasks), num_returns=1, timeout=1.0)
        for task in ready:
            slot = tasks[task]
            try:
                ray.get(task)
                slot.is_open, self._not_started = True, 0
            except ray.exceptions.RayActorError as error:
                if not slot.is_open:
                    self._note_no_start(error)
                self._note_loss(slot)
            except ray.exceptions.RayTaskError as error:
                self._note_defect(slot, error)
            self._agenda.note(slot.batch)
            slot.task, slot.batch = None, []

    def _note_loss(self, slot: _Slot) -> None:
        """The worker or its node is gone; its units are handed out again, though not for ever."""
        self._end([slot])
        for unit in slot.batch:
            self._lost[unit.id] += 1
            if self._lost[unit.id] >= ATTEMPTS and self._folder.output(unit.id) is None:
                self._folder.fail(unit, f"its worker died {ATTEMPTS} times (out of memory?)")

    def _note_no_start(self, error: Exception) -> None:
        self._not_started += 1
        if self._not_started > ATTEMPTS * len(self._slots):
            told = str(error).strip().splitlines()
            raise HistobenchError(
                f"workers do not start on the Ray cluster (is the same environment on every node?): "
                f"{told[-1] if told else type(error).__name__}"
            )

    def _note_defect(self, slot: _Slot, error: Exception) -> None:
        cause = getattr(error, "cause", None) or error
        for unit in slot.batch:
            if self._folder.output(unit.id) is None:
                self._lost[unit.id] += 1
                if self._lost[unit.id] >= ATTEMPTS:
                    self._folder.fail(unit, f"unexpected {type(cause).__name__}: {cause}")

    def _end(self, slots: Sequence[_Slot]) -> None:
        """Let go of the actors; those that are idle tidy up before, all at the same time."""
        import ray

        idle = [slot for slot in slots if slot.actor is not None and slot.is_open and slot.task is None]
        closing = [slot.actor.close.remote() for slot in idle]
        if closing:  # one that is gone by itself, or does not come to an end, keeps nobody
            ray.wait(closing, num_returns=len(closing), timeout=CLOSING_SECONDS)
        for slot in slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
            slot.actor, slot.is_open, slot.like = None, False, ()
