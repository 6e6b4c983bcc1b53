"""The loop of a worker: find units that can be done, claim one, do it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from histobench.core.files import patience
from histobench.work.run_folder import RunFolder, Unit, Worker

Batch = tuple[str, ...]
T = TypeVar("T")


class Agenda:
    """The units of some kinds that have no output; those of one batch are ready at the same time."""

    def __init__(self, folder: RunFolder, kinds: Collection[str] | None = None, *, read: bool = True) -> None:
        self._folder = folder
        self._kinds = folder.kinds if kinds is None else kinds
        self.refresh(read=read)

    def refresh(self, *, read: bool = False) -> None:
        """Look at everything again: at what others have done, and at units that were not known before."""
        self._folder.refresh(read=read)
        every = self._folder.units()
        left = [unit for unit in every if self._folder.state(unit.id) is None]
        self._open = Counter(unit.needs[0] for unit in left if unit.kind in self._folder.found)
        mine = [unit for unit in left if unit.kind in self._kinds]
        self.known = sum(unit.kind in self._kinds for unit in every)
        self.left = {unit.id for unit in mine}
        self._batches: dict[Batch, dict[str, Unit]] = {}
        for unit in mine:
            self._batches.setdefault(self._folder.batch_of(unit), {})[unit.id] = unit
        self.is_stale = False

    def ready(self, kinds: Collection[str], *, like: Batch = (), start: float = 0.0) -> Iterator[list[Unit]]:
        """Yield units that can be done together: the batch `like` first, others from a share `start` on."""
        keys = [like] if like in self._batches else []
        for key in (*keys, *_rotated(list(self._batches), start)):
            units = self._batches[key]
            first = next(iter(units.values()), None)
            if first is not None and first.kind in kinds and self._is_ready(first):
                yield _rotated(list(units.values()), start)

    def note(self, units: Iterable[Unit]) -> None:
        """Look at the outputs of these; what has none is still to be done."""
        for unit in units:
            if self._folder.output(unit.id) is None:
                continue
            self._batches[self._folder.batch_of(unit)].pop(unit.id, None)
            if unit.id in self.left:  # else it was seen in the meantime
                self.left.remove(unit.id)
                if unit.kind in self._folder.found:
                    self._open[unit.needs[0]] -= 1
                self.is_stale |= unit.kind in self._folder.finding

    def _is_ready(self, unit: Unit) -> bool:
        """Whether all that a unit needs has an output, with what was found there."""
        if any(self._folder.state(need) is None for need in unit.needs):
            return False
        return unit.kind in self._folder.found or not any(self._open[need] for need in unit.needs)


def _rotated(items: list[T], start: float) -> list[T]:
    cut = int(start * len(items))
    return items[cut:] + items[:cut]


#: Seconds between two looks where other workers have everything: at first, and at most.
PAUSE, LONGEST_PAUSE = 0.5, 10.0
#: Seconds without any live claim after which no other worker is expected, unless a disk needs longer.
ALONE_SECONDS = 3.0

Hook = Callable[[Sequence[Unit]], None]


def work_through(
    folder: RunFolder,
    worker: Worker,
    *,
    kinds: Collection[str] | None = None,
    alone: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    before: Hook = lambda units: None,
    after: Hook = lambda units: None,
) -> None:
    """Do every unit of these kinds until all have an output; claim each, unless the worker is `alone`."""
    kinds = folder.kinds if kinds is None else kinds
    agenda = Agenda(folder, kinds, read=alone)
    alone_since, began, has_worked, pause = time.monotonic(), time.monotonic(), False, PAUSE
    like: Batch = ()
    while not stopped():
        if agenda.is_stale:
            agenda.refresh()
        if not agenda.left:
            return
        with ExitStack() as stack:
            mine = next(agenda.ready(kinds), []) if alone else _claimed(folder, agenda, kinds, like, stack)
            if mine:
                before(mine)
                worker.perform(mine)
                after(mine)
        if mine:
            agenda.note(mine)
            alone_since, has_worked, pause = time.monotonic(), True, PAUSE
            like = folder.batch_of(mine[0])
        if mine or agenda.is_stale:
            continue
        # What is left waits for units that are not of these kinds, or for other workers. Where no one is at
        # work any more it waits in vain, and the next attempt goes on from here.
        agenda.is_stale = True
        if others := any(True for _ in folder.holders()):
            alone_since = time.monotonic()
        waited = time.monotonic() - began
        is_over = time.monotonic() - alone_since > max(ALONE_SECONDS, patience())
        if is_over or (folder.patience is not None and (has_worked or waited > folder.patience)):
            return
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, 1.5 * pause) if others else PAUSE


def _claimed(
    folder: RunFolder, agenda: Agenda, kinds: Collection[str], like: Batch, stack: ExitStack
) -> list[Unit]:
    """Claim units of one batch, stale claims last; every worker begins elsewhere."""
    held = folder.claimed()
    for skipped in [held, set()] if held else [set()]:
        for batch in agenda.ready(kinds, like=like, start=random.random()):
            mine: list[Unit] = []
            done: list[Unit] = []
            for unit in batch:
                if len(mine) >= folder.at_once.get(unit.kind, len(batch)):
                    break
                if unit.id in skipped:
                    continue
                if folder.output(unit.id) is not None:
                    done.append(unit)
                    continue
                claim = folder.claim(unit)
                if claim is not None:
                    stack.callback(claim.release)
                    # It may have been finished just now.
                    (mine if folder.output(unit.id) is None else done).append(unit)
            if done:  # others may have done much more: list all outputs rather than look one by one
                agenda.note(done)
                agenda.is_stale = True
            if mine or done:
                return mine
    return []
