"""Units of work and the folder of one run that holds them.

Whether a unit is done is seen from its output alone: it is there and what it names is there. So any number of
workers may read and write here at the same time, on any machine, and each may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from histobench.core.devices import collector_paused
from histobench.core.errors import HistobenchError
from histobench.core.files import (
    create_json,
    names_in,
    patiently,
    read_bytes,
    read_note,
    unreadable,
    write_json,
    write_text,
)
from histobench.core.plain_data import parse_json

# A unit of work: what is to be done, what it needs, and a name that says nothing else would be the same.

#: `hash` hashes some images of a large dataset; `prepare` hashes what is left and decides how features are
#: computed; `shards` computes rows for the cache; `features` writes an encoder's feature files; `episodes`
#: plays some settings of a large few-shot evaluation; `evaluate` and `splits` are tasks on features;
#: `compare` puts the encoders of one dataset and task side by side.
KINDS = ("hash", "prepare", "shards", "features", "episodes", "evaluate", "splits", "compare")
#: The last unit, done by the process that began the run, or by Slurm's last job: what is made of everything.
REPORT = "report"
#: Where one of these fails, whoever waits for it does its work.
HELPING = ("hash", "episodes")
#: What needs the network, and so the device.
COMPUTING = ("prepare", "shards")
#: What `Unit.id` looks like.
_NAME = re.compile("[a-z]+-[0-9a-f]{20}")
#: As `json.dumps`, which makes a new encoder for every one of 100,000 units.
_ENCODE = json.JSONEncoder(sort_keys=True).encode


@dataclass(frozen=True)
class Unit:
    """One piece of work; `spec` is plain values, and all that its outcome depends on besides `needs`."""

    kind: str
    dataset: str
    encoder: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: Units that must be finished before.
    needs: tuple[str, ...] = ()
    #: Roughly how long it takes on a typical device; None where nothing is known.
    seconds: float | None = None

    @cached_property
    def id(self) -> str:
        """The name of its output."""
        known = _ENCODE([self.kind, self.dataset, self.encoder, self.spec])
        return f"{self.kind}-{hashlib.sha256(known.encode()).hexdigest()[:20]}"

    @property
    def job(self) -> str:
        """What messages call it."""
        parts = [self.dataset, self.encoder, str(self.spec.get("preset", ""))]
        job = " x ".join(part for part in parts if part)
        if self.kind == "compare":
            return f"{job}: encoders compared by {self.spec['task']}"
        return f"{job}: features" if self.kind in ("hash", "prepare", "shards", "features") else job

    def as_line(self) -> str:
        """The unit as a line of JSON, with its name, which takes longer to work out than to read."""
        return _ENCODE({**asdict(self), "id": self.id})

    @classmethod
    def from_line(cls, line: str) -> Unit:
        """What `as_line` gave."""
        values = parse_json(line)
        if not isinstance(values, dict):
            raise TypeError(f"a unit is an object, not {type(values).__name__}")
        name = values.pop("id", None)
        values["needs"] = tuple(values["needs"])
        unit = cls(**values)
        texts = (unit.kind, unit.dataset, unit.encoder, *unit.needs)
        if not all(isinstance(text, str) for text in texts) or not isinstance(unit.spec, dict):
            raise TypeError("a unit has a kind, a dataset, an encoder and a spec")
        if name is not None:  # it becomes the name of a file
            if not isinstance(name, str) or not _NAME.fullmatch(name) or kind_of(name) != unit.kind:
                raise ValueError(f"{name!r} is not the name of a unit")
            unit.__dict__["id"] = name  # where `cached_property` keeps it
        return unit


def kind_of(name: str) -> str:
    """The kind of the unit with this name.

    >>> kind_of("hash-0a1b2c")
    'hash'
    """
    return name.partition("-")[0]


def same_batch(unit: Unit) -> tuple[str, ...]:
    """Units of one batch are done together: they share an encoder on the device, or loaded features."""
    if unit.kind == "shards":
        return unit.kind, unit.spec["prepare"], json.dumps(unit.spec["encoders"])
    if unit.kind == "evaluate":
        alone = unit.id if len(unit.needs) > 1 else ""  # it waits for more than the features
        return unit.kind, unit.dataset, unit.encoder, unit.spec["preset"], alone
    return (unit.id,)


RUNS = "work/runs"
UNITS = "units.jsonl"
PLAN = "plan.json"
#: How the name of a run begins.
STAMP = "%Y%m%d-%H%M%S-%f"
#: States of a unit with an output; one without is still to be done.
DONE, FAILED, BLOCKED = "done", "failed", "blocked"
#: Files of one folder that are looked for one by one before the folder is listed.
ONE_BY_ONE = 16


#: What readers rely on in the output of a finished unit, by its kind: "*" stands for every key, and a key
#: with "?" may be missing. Whoever can write to the folder may have written something else.
_NUMBER = (int, float)
_FEATURES = {
    "extracted": {"*": {"path": str, "fingerprint": str}},
    "computed": int,
    "seconds": _NUMBER,
    "device": str,
}
_PLANNED = {
    "encoders": list,
    "order": str,
    "digest": str,
    "device": str,
    "device_kind": str,
    "threads": int,
    "unreadable": {"*": str},
}
_SHAPES: dict[str, dict[str, Any]] = {
    "prepare": {"failures": {"*": str}, "?versions": dict},
    "features": _FEATURES,
    "shards": {"computed": {"*": int}, "seconds": {"*": _NUMBER}, "?not_staged": str},
    "evaluate": {"outcome": str, "?reason": str},
    "splits": {"splits": {"*": {"evaluated": list, "unchanged": list, "failed": {"*": str}}}},
}


def _fits(value: Any, shape: Any) -> bool:
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    if not isinstance(value, dict):
        return False
    if "*" in shape:
        return all(_fits(each, shape["*"]) for each in value.values())
    return all(
        _fits(value.get(key.lstrip("?")), each)
        for key, each in shape.items()
        if not key.startswith("?") or key[1:] in value
    )


def _is_output(note: dict[str, Any], unit: str) -> bool:
    """Whether a unit with this name has written the note, as far as its content shows."""
    if note.get("unit") != unit or note.get("state") not in (DONE, FAILED, BLOCKED):
        return False
    if note["state"] != DONE:
        return _fits(note, {"job": str, "reason": str})
    kind = kind_of(unit)
    if kind == "prepare":  # all features were computed at once, or only planned
        whole = {"extractions": {"*": _FEATURES}}
        return _fits(note, _SHAPES[kind]) and _fits(note, whole if "extractions" in note else _PLANNED)
    return _fits(note, _SHAPES.get(kind, {}))


class RunFolder:
    """`results/work/runs/NAME`; `digest` is that of the only list of units that is accepted."""

    def __init__(self, path: Path, digest: str = "") -> None:
        self.path = path
        self.digest = digest
        self._outputs = str(path / "outputs")
        self._units: list[Unit] | None = None
        self._named: dict[str, Unit] | None = None
        self._shards: dict[str, list[Unit]] = {}
        self._finished: dict[str, dict[str, Any]] = {}

    @classmethod
    def create(cls, results: Path, plan: Mapping[str, Any], units: Sequence[Unit]) -> RunFolder:
        """A new run; `plan` is plain values, `units` all that is known before images are hashed."""
        # To the microsecond, so that names of two runs of one second are in the order of their beginning; and
        # after the one before, whatever the clock says.
        began = datetime.now(UTC)
        before = cls.latest(results)
        if before is not None:
            with contextlib.suppress(ValueError):
                last = datetime.strptime(before.path.name.rpartition("-")[0], STAMP).replace(tzinfo=UTC)
                began = max(began, last + timedelta(microseconds=1))
        name = f"{began:{STAMP}}-{uuid.uuid4().hex[:6]}"
        folder = cls(results / RUNS / name)
        write_json(folder.path / PLAN, dict(plan))
        folder.digest = write_lines(folder.path / UNITS, units)
        return folder

    @classmethod
    def latest(cls, results: Path) -> RunFolder | None:
        """The run that was begun last in a results folder."""
        try:
            names = patiently(lambda: os.listdir(results / RUNS))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(results / RUNS, error) from error
        found = (results / RUNS / name for name in sorted(names, reverse=True))
        return next((cls(path) for path in found if (path / UNITS).is_file()), None)

    def part(self, name: str) -> Path:
        """A folder of the run; one that is a link would lead what is written to another place."""
        if (path := self.path / name).is_symlink():
            raise HistobenchError(f"{path} is a link to another folder; remove it, and run again")
        return path

    @property
    def results(self) -> Path:
        return self.path.parents[2]

    @property
    def plan(self) -> dict[str, Any]:
        """What was asked for, as plain values."""
        return read_note(self.path / PLAN) or {}

    def units(self) -> list[Unit]:
        """Every unit that is known by now, in the order in which one worker would do them."""
        if self._units is None:
            self._units, self.digest = read_lines(self.path / UNITS, self.digest)
        every: list[Unit] = []
        for unit in self._units:
            every.append(unit)
            if unit.kind == "prepare":
                every += self.shards(unit.id)
        return every

    def unit(self, name: str) -> Unit:
        """A unit that was known when the run was begun."""
        if self._named is None:
            self.units()
            self._named = {unit.id: unit for unit in self._units or ()}
        if name not in self._named:
            raise HistobenchError(f"{self.path / UNITS} has no unit {name}; start a new run")
        return self._named[name]

    def shards(self, prepare: str) -> list[Unit]:
        """The units that preparing a dataset has found; none before it is done."""
        if prepare not in self._shards:
            if not (self.path / "shards" / f"{prepare}.jsonl").is_file():
                return []
            self._shards[prepare], _ = read_lines(self.path / "shards" / f"{prepare}.jsonl")
        return self._shards[prepare]

    def refresh(self) -> None:
        """Take note of outputs that others have written."""
        is_there = _Listings().has
        with collector_paused():
            for name in names_in(self.part("outputs"), ".json"):
                unit = name.removesuffix(".json")
                if unit not in self._finished and not name.startswith("."):
                    self._look(unit, is_there)

    def output(self, unit: str) -> dict[str, Any] | None:
        """What a unit gave, with its `state`; None while it is still to be done."""
        return self._finished.get(unit) or self._look(unit)

    def state(self, unit: str) -> str | None:
        """`done`, `failed`, `blocked`, or None as far as is known since `refresh`."""
        return self._finished.get(unit, {}).get("state")

    def finish(self, unit: Unit, *, files: Iterable[Path] = (), **found: Any) -> None:
        """Note that a unit is done; the first of two workers that did the same is believed."""
        self._note(unit, {"state": DONE, "unit": unit.id, "files": [str(path) for path in files], **found})

    def fail(self, unit: Unit, reason: str, *, state: str = FAILED, job: str = "") -> None:
        """Note that a unit cannot be done, and why; `job` is what messages call it."""
        self._note(unit, {"state": state, "unit": unit.id, "job": job or unit.job, "reason": reason})

    def _note(self, unit: Unit, note: Mapping[str, Any]) -> None:
        path = self._path(unit.id)
        if not create_json(path, note) and self._look(unit.id) is None:
            write_json(path, note)  # in place of an output that no longer holds
        self._look(unit.id)

    def forget_failures(self) -> int:
        """Let what failed be tried again; how many units that are."""
        self.refresh()
        again = [
            unit for unit, note in self._finished.items() if note["state"] != DONE or note.get("failures")
        ]
        count, gone = len(again), set(again)
        for unit in self.units():  # what was made of the rest is made again with it
            if unit.kind in ("compare", REPORT) and unit.id not in gone and not gone.isdisjoint(unit.needs):
                gone.add(unit.id)
        for name in gone:
            self._path(name).unlink(missing_ok=True)
            self._finished.pop(name, None)
        return count

    def _path(self, unit: str) -> Path:
        return self.part("outputs") / f"{unit}.json"

    def _look(self, unit: str, is_there: Callable[[str], bool] = os.path.exists) -> dict[str, Any] | None:
        """Read an output, and believe it if all that it names is there."""
        note = read_note(f"{self._outputs}/{unit}.json")
        if note is None or not _is_output(note, unit):
            return None
        files = note.get("files", [])
        if not isinstance(files, list) or not all(isinstance(file, str) and is_there(file) for file in files):
            return None
        self._finished[unit] = note
        return note


def worker_arguments(folder: RunFolder) -> list[str]:
    """The arguments of a worker, which does no other units than those that the folder has now."""
    folder.units()
    return ["worker", "roi", str(folder.path.absolute()), "--digest", folder.digest]


class _Listings:
    """Whether files are there, by one listing of each folder that many of them are in.

    A listing may lag behind, so that what it lacks is looked for by its name.
    """

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._names: dict[str, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition(os.sep)
        names = self._names.get(folder)
        if names is None:
            self._asked[folder] = asked = self._asked.get(folder, 0) + 1
            if asked <= ONE_BY_ONE:
                return os.path.exists(path)
            try:
                names = frozenset(os.listdir(folder))
            except OSError:  # then one by one
                names = frozenset()
            self._names[folder] = names
        return name in names or os.path.exists(path)


def write_lines(path: Path, units: Sequence[Unit]) -> str:
    """Write units, one per line; gives the digest of the file."""
    text = "".join(f"{unit.as_line()}\n" for unit in units)
    write_text(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_lines(path: Path, digest: str = "") -> tuple[list[Unit], str]:
    """What `write_lines` wrote, and its digest; a file with another one than `digest` is refused."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise unreadable(path, error) from error
    found = hashlib.sha256(data).hexdigest()
    if digest not in ("", found):
        raise HistobenchError(f"{path} was changed after the run began, perhaps by another user; run again")
    try:
        with collector_paused():
            return [Unit.from_line(line) for line in data.decode("utf-8").splitlines()], found
    except (ValueError, KeyError, TypeError) as error:
        raise HistobenchError(f"{path} is not a list of units: {error}; start a new run") from error
