"""The loop that does a run's units: find what can be done, claim it, do it, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from histobench.core.claim import Claim, holder_of, try_claim
from histobench.core.reading import files_below
from histobench.roi.work.run_folder import RunFolder
from histobench.roi.work.unit import KINDS, Unit, same_batch
from histobench.roi.work.worker import Worker

#: Units that a worker claims at a time, so that others find something to do as well.
AT_ONCE = {"shards": 4}
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
    idle = 0
    while not stopped():
        folder.refresh()
        left = [unit for unit in folder.units() if unit.kind in kinds and folder.state(unit.id) is None]
        if not left:
            return
        batch = next_batch(folder, left)
        with ExitStack() as stack:
            mine = batch if alone else _claimed(folder, left, stack)
            if mine:
                before(mine)
                worker.perform(mine)
                after(mine)
        if mine:
            idle = 0
            continue
        # What is left waits for units that are not of these kinds, or for other workers. Where nobody is at
        # work any more it waits in vain, and the next attempt goes on from here.
        idle = 0 if _at_work(folder) else idle + 1
        if idle > LOOKS:
            return
        time.sleep(PAUSE)


def is_ready(folder: RunFolder, unit: Unit) -> bool:
    """Whether all that a unit needs has an output; feature files need every shard as well."""
    if any(folder.state(need) is None for need in unit.needs):
        return False
    if unit.kind != "features":
        return True
    return all(folder.state(shard.id) is not None for shard in folder.shards(unit.needs[0]))


def next_batch(folder: RunFolder, left: Sequence[Unit], *, like: tuple[str, ...] = ()) -> list[Unit]:
    """The first units that can be done together; those of the batch `like` before all others."""
    first: Unit | None = None
    for unit in left:
        if is_ready(folder, unit):
            if same_batch(unit) == like:
                first = unit
                break
            first = first or unit
            if not like:
                break
    if first is None:
        return []
    together = [unit for unit in left if same_batch(unit) == same_batch(first) and is_ready(folder, unit)]
    return together[: AT_ONCE.get(first.kind, len(together))]


def _claimed(folder: RunFolder, left: Sequence[Unit], stack: ExitStack) -> list[Unit]:
    """The first batch of which something could be claimed."""
    rest = list(left)
    while rest:
        batch = next_batch(folder, rest)
        if not batch:
            return []
        mine = []
        for unit in batch:
            claim = claim_unit(folder, unit)
            if claim is not None:
                stack.callback(claim.release)
                if folder.output(unit.id) is None:  # it may have been finished just now
                    mine.append(unit)
        if mine:
            return mine
        tried = {unit.id for unit in batch}
        rest = [unit for unit in rest if unit.id not in tried]
    return []


def _at_work(folder: RunFolder) -> bool:
    claims = files_below(folder.path / "claims", ".json", deep=False)
    return any(holder_of(path) is not None for path in claims)


def claim_unit(folder: RunFolder, unit: Unit) -> Claim | None:
    """The claim on a unit, None while another worker has it."""
    return try_claim(folder.path / "claims" / f"{unit.id}.json", unit=unit.id)
