"""Units of work and the folder of one run that holds them, for every track.

A unit is done when its output and all that it names are there: any number of workers may share a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from histobench.core.claim import Claim, claimed_name, holder_of, try_claim
from histobench.core.devices import collector_paused
from histobench.core.errors import HistobenchError
from histobench.core.files import (
    await_file,
    create_json,
    names_in,
    read_bytes,
    read_note,
    write_json,
    write_text,
)
from histobench.core.plain_data import parse_json
from histobench.core.progress import Progress

log = logging.getLogger(__name__)

#: What `Unit.id` looks like.
_NAME = re.compile("[a-z]+-[0-9a-f]{20}")
#: As `json.dumps`, which makes a new encoder for every one of 100,000 units.
_ENCODE = json.JSONEncoder(sort_keys=True).encode


@dataclass(frozen=True)
class Unit:
    """One piece of work; `spec` is plain values, and all that its outcome depends on besides `needs`."""

    kind: str
    dataset: str
    #: What is under test: an encoder, or an agent.
    encoder: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: Units that must be finished before.
    needs: tuple[str, ...] = ()
    #: Roughly how long it takes on a typical device; None where nothing is known.
    seconds: float | None = None

    @cached_property
    def id(self) -> str:
        known = _ENCODE([self.kind, self.dataset, self.encoder, self.spec])
        return f"{self.kind}-{hashlib.sha256(known.encode()).hexdigest()[:20]}"

    def as_line(self) -> str:
        """The unit as a line of JSON, with its name, which takes longer to work out than to read."""
        return _ENCODE({**asdict(self), "id": self.id})

    @classmethod
    def from_line(cls, line: str) -> Unit:
        values = parse_json(line)
        name = values.pop("id")
        unit = cls(**{**values, "needs": tuple(values["needs"])})
        if not _NAME.fullmatch(name) or kind_of(name) != unit.kind:  # it becomes the name of a file
            raise ValueError(f"{name!r} is not the name of a unit")
        unit.__dict__["id"] = name  # where `cached_property` keeps it
        return unit


def kind_of(name: str) -> str:
    return name.partition("-")[0]


UNITS = "units.jsonl"
PLAN = "plan.json"
#: The folder of the units that others have found.
FOUND = "shards"
#: How the name of a run begins.
STAMP = "%Y%m%d-%H%M%S-%f"
#: States of a unit with an output; one without is still to be done.
DONE, FAILED, BLOCKED = "done", "failed", "blocked"
#: Held by the process that began a run, as long as it lives.
DRIVER = "driver.json"
#: Seconds after which the claim on a unit that costs no money is not renewed any more (or ten times the
#: estimate): units take minutes, so its worker hangs, and another may do the same.
HUNG = 3600.0


class Worker(Protocol):
    """Does units and writes their outputs; the same on every machine."""

    def perform(self, units: Sequence[Unit]) -> None:
        """Do the units of one batch; one that cannot be done has an output that says why."""

    def close(self) -> None:
        """Let go of whatever is kept for the next batch."""


class JobArray(NamedTuple):
    """An array of Slurm that follows the one before; `tasks` share its work unless a number is asked for."""

    name: str
    kinds: Sequence[str]
    tasks: int
    on_device: bool = False
    #: Whether the number of tasks can be chosen.
    is_shared: bool = True


class RunFolder:
    """`RESULTS/work/runs/NAME`; `digest` is that of the only list of units that is accepted."""

    #: As `histobench worker` calls the track.
    track: ClassVar[str]
    #: Where runs are, below a folder of results.
    runs: ClassVar[str] = "work/runs"
    #: Kinds of units, in the order in which one worker would do them.
    kinds: ClassVar[tuple[str, ...]]
    #: Of these: what only workers with a device do.
    on_device: ClassVar[tuple[str, ...]] = ()
    #: What finds more units, and what it finds. What needs the one waits for the other as well.
    finding: ClassVar[tuple[str, ...]] = ()
    found: ClassVar[tuple[str, ...]] = ()
    #: Units of one batch that are handed out at a time, so that others find something to do as well.
    at_once: ClassVar[Mapping[str, int]] = {}
    #: Seconds that a worker waits for its first unit while others have all of them; None: as long as units
    #: are left. Where it is set, units cost money: no one does one that another is at.
    patience: ClassVar[float | None] = None

    def open_worker(self, progress: Progress, say: Callable[[str], None]) -> Worker:
        """Who does the units of this run."""
        raise NotImplementedError

    def steps(self) -> list[JobArray]:
        """The jobs of Slurm that do the units."""
        raise NotImplementedError

    def batch_of(self, unit: Unit) -> tuple[str, ...]:
        """Units of one batch are done together: they share what has to be loaded."""
        return (unit.id,)

    def title(self, unit: Unit) -> str:
        return " x ".join(part for part in (unit.dataset, unit.encoder) if part)

    def __init__(self, path: Path, digest: str = "") -> None:
        self.path = path
        self.digest = digest
        self._units: list[Unit] | None = None
        self._named: dict[str, Unit] | None = None
        self._found: dict[str, list[Unit]] = {}
        self._finished: dict[str, dict[str, Any]] = {}
        self._listed: set[str] = set()

    @classmethod
    def create(cls, results: Path, plan: Mapping[str, Any], units: Sequence[Unit]) -> Self:
        """A new run; `plan` is plain values, `units` all that is known at its beginning."""
        # To the microsecond, so that the names of two runs are in the order of their beginning.
        folder = cls(results / cls.runs / (f"{datetime.now(UTC):{STAMP}}-{uuid.uuid4().hex[:6]}"))
        write_json(folder.path / PLAN, dict(plan))
        folder.digest = write_lines(folder.path / UNITS, units)
        return folder

    @classmethod
    def latest(cls, results: Path) -> Self | None:
        return next(cls.every(results), None)

    @classmethod
    def every(cls, results: Path, runs: str = "") -> Iterator[Self]:
        """The runs in a results folder, the last one first; `runs` says where, if not those of this track."""
        place = results / (runs or cls.runs)
        found = (place / name for name in reversed(names_in(place)))
        yield from (cls(path) for path in found if (path / UNITS).is_file())

    @property
    def results(self) -> Path:
        return self.path.parents[2]

    @property
    def plan(self) -> dict[str, Any]:
        return read_note(self.path / PLAN) or {}

    @property
    def engine(self) -> str:
        """Return the name of the engine that the run was planned for; empty where that is not known."""
        with contextlib.suppress(OSError):
            return str(self.plan.get("engine", ""))
        return ""

    def units(self) -> list[Unit]:
        if self._units is None:
            self._units, self.digest = read_lines(self.path / UNITS, self.digest)
        return [
            each
            for unit in self._units
            for each in (unit, *(self.found_by(unit.id) if unit.kind in self.finding else ()))
        ]

    def unit(self, name: str) -> Unit:
        if self._named is None:
            self.units()
            self._named = {unit.id: unit for unit in self._units or ()}
        return self._named[name]

    def found_by(self, unit: str) -> list[Unit]:
        """The units that another one has found; none before it is done."""
        listed = self.path / FOUND / f"{unit}.jsonl"
        if unit not in self._found and listed.is_file():
            self._found[unit] = read_lines(listed)[0]
        return self._found.get(unit, [])

    def refresh(self, *, read: bool = True) -> None:
        """Take note of outputs that others have written; of most the names alone, without `read`."""
        self._listed.clear()
        with collector_paused():
            for name in names_in(self.path / "outputs", ".json"):
                unit = name.removesuffix(".json")
                if unit in self._finished or name.startswith("."):
                    continue
                if read or kind_of(unit) in self.finding:
                    self._look(unit)
                else:
                    self._listed.add(unit)

    def output(self, unit: str) -> dict[str, Any] | None:
        return self._finished.get(unit) or self._look(unit)

    def state(self, unit: str) -> str | None:
        """`done`, `failed`, `blocked`, or None as far as is known since `refresh`; `done` if only listed."""
        return self._finished.get(unit, {}).get("state") or (DONE if unit in self._listed else None)

    def finish(self, unit: Unit, *, files: Iterable[Path] = (), **found: Any) -> None:
        """Note that a unit is done; the first of two workers that did the same is believed."""
        self._note(unit, {"state": DONE, "files": [str(path) for path in files], **found})

    def fail(self, unit: Unit, reason: str, *, state: str = FAILED, job: str = "") -> None:
        """Note that a unit cannot be done, and why; `job` is what messages call it."""
        self._note(unit, {"state": state, "job": job or self.title(unit), "reason": reason})

    def _note(self, unit: Unit, about: Mapping[str, Any]) -> None:
        path, note = self._path(unit.id), {"unit": unit.id, **about}
        if not create_json(path, note) and self._look(unit.id) is None:
            write_json(path, note)  # in place of an output that no longer holds
        self._look(unit.id)

    def forget(self, units: Iterable[str]) -> None:
        for unit in units:
            self._path(unit).unlink(missing_ok=True)
            self._finished.pop(unit, None)
            self._listed.discard(unit)
            if self._found.pop(unit, None) is not None:
                (self.path / FOUND / f"{unit}.jsonl").unlink(missing_ok=True)

    def claim(self, unit: Unit) -> Claim | None:
        """Claim a unit; return None while another worker has it. See `HUNG`."""
        limit = max(HUNG, 10 * (unit.seconds or 0.0)) if self.patience is None else None
        return try_claim(
            self.path / "claims" / f"{unit.id}.json", limit=limit, unit=unit.id, began=time.time()
        )

    def claimed(self) -> set[str]:
        return {claimed_name(name) for name in names_in(self.path / "claims", ".json")}

    def holder(self, unit: str, *, even_stale: bool = False) -> dict[str, Any] | None:
        return holder_of(self.path / "claims" / f"{unit}.json", even_stale=even_stale)

    def holders(self) -> Iterator[dict[str, Any]]:
        yield from filter(None, map(self.holder, self.claimed()))

    @property
    def driver(self) -> dict[str, Any] | None:
        return holder_of(self.path / DRIVER)

    @contextlib.contextmanager
    def driven(self) -> Iterator[None]:
        """Let others see that this process is at work here."""
        claim = try_claim(self.path / DRIVER)
        try:
            yield
        finally:
            if claim is not None:
                claim.release()

    def worker_arguments(self) -> list[str]:
        """The arguments of a worker, which does no other units than those that there are now."""
        self.units()
        return ["worker", self.track, str(self.path.absolute()), "--digest", self.digest]

    def _path(self, unit: str) -> Path:
        return self.path / "outputs" / f"{unit}.json"

    def _look(self, unit: str) -> dict[str, Any] | None:
        """Read an output, and believe it if all that it names is there."""
        note = read_note(self._path(unit))
        if note is None or note.get("unit") != unit or note.get("state") not in (DONE, FAILED, BLOCKED):
            return None
        if not all(map(os.path.exists, note.get("files", []))):
            return None
        self._finished[unit] = note
        return note


def holders_of(run: RunFolder) -> list[dict[str, Any]]:
    """Return the processes at work on an earlier run; a damaged run is reported and left alone."""
    try:
        return [*filter(None, [run.driver]), *run.holders()]
    except (HistobenchError, OSError) as error:
        log.warning("%s is damaged and was skipped: %s", run.path, error)
        return []


def write_lines(path: Path, units: Sequence[Unit]) -> str:
    text = "".join(f"{unit.as_line()}\n" for unit in units)
    write_text(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_lines(path: Path, digest: str = "") -> tuple[list[Unit], str]:
    """What `write_lines` wrote, and its digest; a file with another one than `digest` is refused."""
    if digest:
        await_file(path)
    data = read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if digest not in ("", found):
        raise HistobenchError(f"{path} was changed after the run began, perhaps by another user; run again")
    try:
        with collector_paused():
            return [Unit.from_line(line) for line in data.decode("utf-8").splitlines()], found
    except (ValueError, KeyError, TypeError) as error:
        raise HistobenchError(f"{path} is not a list of units: {error}; start a new run") from error
