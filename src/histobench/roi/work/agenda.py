"""What is left of a run's units and what of it can be done now, kept up to date unit by unit.

To look through all outputs costs more than most units once there are 100,000 of them. So they are looked
through when a worker knows of nothing that it could do; else it looks at those of the units in its hands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from histobench.roi.work.run_folder import RunFolder
from histobench.roi.work.unit import KINDS, Unit, same_batch

#: Units of one batch that are handed out at a time, so that others find something to do as well.
AT_ONCE = {"shards": 4}

Batch = tuple[str, ...]


class Agenda:
    """The units of some kinds that have no output; those of one batch are ready at the same time."""

    def __init__(self, folder: RunFolder, kinds: Collection[str] = KINDS) -> None:
        self._folder = folder
        self._kinds = kinds
        self._taken: dict[str, Unit] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look at everything again: at what others have done, and at units that were not known before."""
        self._folder.refresh()
        every = self._folder.units()
        left = [unit for unit in every if self._folder.state(unit.id) is None]
        self._open_shards = Counter(unit.spec["prepare"] for unit in left if unit.kind == "shards")
        mine = [unit for unit in left if unit.kind in self._kinds]
        self.known = sum(unit.kind in self._kinds for unit in every)
        self._left = {unit.id for unit in mine}
        self._batches: dict[Batch, dict[str, Unit]] = {}
        for unit in mine:
            if unit.id not in self._taken:
                self._batches.setdefault(same_batch(unit), {})[unit.id] = unit
        self.is_stale = False

    @property
    def left(self) -> int:
        """How many units have no output, those in somebody's hands included."""
        return len(self._left)

    def ready(self, kinds: Collection[str], *, like: Batch = ()) -> Iterator[list[Unit]]:
        """The units that can be done together, batch by batch; those of the batch `like` come first."""
        keys = [like] if like in self._batches else []
        for key in (*keys, *self._batches):
            units = self._batches[key]
            first = next(iter(units.values()), None)
            if first is not None and first.kind in kinds and self._is_ready(first):
                yield list(units.values())

    def take(self, units: Sequence[Unit]) -> None:
        """Units are in somebody's hands, until they are noted."""
        for unit in units:
            self._taken[unit.id] = unit
            self._batches[same_batch(unit)].pop(unit.id, None)

    def note(self, units: Iterable[Unit]) -> None:
        """Look at the outputs of these; what has none is to be done again."""
        for unit in units:
            self._taken.pop(unit.id, None)
            batch = self._batches.setdefault(same_batch(unit), {})
            if self._folder.output(unit.id) is None:
                batch[unit.id] = unit
                continue
            batch.pop(unit.id, None)
            if unit.id in self._left:  # else it was seen in the meantime
                self._left.remove(unit.id)
                if unit.kind == "shards":
                    self._open_shards[unit.spec["prepare"]] -= 1
                self.is_stale |= unit.kind == "prepare"  # which has found more units

    def _is_ready(self, unit: Unit) -> bool:
        """Whether all that a unit needs has an output; feature files need every shard as well."""
        if any(self._folder.state(need) is None for need in unit.needs):
            return False
        return unit.kind != "features" or not self._open_shards[unit.needs[0]]
