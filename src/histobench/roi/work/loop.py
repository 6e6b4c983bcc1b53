"""The loop that does a run's units: find what can be done, claim it, do it, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from histobench.core.claim import Claim, holder_of, try_claim
from histobench.core.reading import files_below, names_in
from histobench.roi.work.agenda import AT_ONCE, Agenda
from histobench.roi.work.run_folder import RunFolder
from histobench.roi.work.unit import KINDS, Unit
from histobench.roi.work.worker import Worker

#: Seconds between two looks where everything is in others' hands.
PAUSE = 0.5
#: Looks at a folder without any live claim after which nobody is expected any more.
LOOKS = 6

Hook = Callable[[Sequence[Unit]], None]


def work_through(
    folder: RunFolder,
    worker: Worker,
    *,
    kinds: Collection[str] = KINDS,
    alone: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    before: Hook = lambda units: None,
    after: Hook = lambda units: None,
) -> None:
    """Do every unit of these kinds that is not done, until all have an output.

    Unless it is `alone`, a worker claims what it does, which spares work; claims of the dead are taken over.
    The two hooks are told of every batch.
    """
    agenda = Agenda(folder, kinds)
    idle = 0
    while not stopped():
        if agenda.is_stale:
            agenda.refresh()
        if not agenda.left:
            return
        with ExitStack() as stack:
            mine = next(agenda.ready(kinds), []) if alone else _claimed(folder, agenda, kinds, stack)
            if mine:
                before(mine)
                worker.perform(mine)
                after(mine)
        if mine:
            agenda.note(mine)
            idle = 0
            continue
        # What is left waits for units that are not of these kinds, or for other workers. Where nobody is at
        # work any more it waits in vain, and the next attempt goes on from here.
        agenda.is_stale = True
        idle = 0 if _at_work(folder) else idle + 1
        if idle > LOOKS:
            return
        time.sleep(PAUSE)


def _claimed(folder: RunFolder, agenda: Agenda, kinds: Collection[str], stack: ExitStack) -> list[Unit]:
    """The units of the first batch of which something could be claimed; stale claims are tried last."""
    held = {name.removesuffix(".json") for name in names_in(folder.path / "claims", ".json")}
    attempts: list[set[str]] = [held, set()] if held else [set()]
    for skipped in attempts:
        for batch in agenda.ready(kinds):
            mine: list[Unit] = []
            done: list[Unit] = []
            for unit in batch:
                if len(mine) >= AT_ONCE.get(unit.kind, len(batch)):
                    break
                if unit.id in skipped:
                    continue
                if folder.output(unit.id) is not None:
                    done.append(unit)
                    continue
                claim = claim_unit(folder, unit)
                if claim is not None:
                    stack.callback(claim.release)
                    # It may have been finished just now.
                    (mine if folder.output(unit.id) is None else done).append(unit)
            if done:
                agenda.note(done)
            if mine or agenda.is_stale:
                return mine
    return []


def _at_work(folder: RunFolder) -> bool:
    claims = files_below(folder.path / "claims", ".json", deep=False)
    return any(holder_of(path) is not None for path in claims)


def claim_unit(folder: RunFolder, unit: Unit) -> Claim | None:
    """The claim on a unit, None while another worker has it."""
    return try_claim(folder.path / "claims" / f"{unit.id}.json", unit=unit.id)
