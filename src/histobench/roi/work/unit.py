"""A unit of work: what is to be done, what it needs, and a name that says nothing else would be the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from histobench.core.plain_data import parse_json

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
        if name is not None:
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
