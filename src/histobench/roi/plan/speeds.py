"""How many images a second each encoder was measured to take while features were computed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from histobench.core.files import derive, files_below, read_note, write_json

FILE = "speeds.json"
#: One file per measurement.
PARTS = "work/speeds"
#: Fewer images than this say nothing about speed.
LEAST_IMAGES = 64


@dataclass(frozen=True)
class Speed:
    """Images through the encoder and the seconds it took; decoding and resizing are not counted."""

    images: int
    seconds: float
    device: str

    @property
    def images_per_second(self) -> float:
        """Images per second of the forward passes that were measured."""
        return self.images / self.seconds


def write_speeds(folder: Path, measured: Mapping[str, Speed]) -> None:
    """Note speeds in a results folder; a measurement on more images replaces an older one.

    Every measurement is a file of its own that no one changes; `speeds.json` is a view of all of them.
    """
    if not measured:
        return
    parts = folder / PARTS
    if not parts.is_dir():
        for name, speed in read_speeds(folder).items():  # noted by an earlier version
            _note(parts, name, speed, at=0)
    for name, speed in measured.items():
        _note(parts, name, speed, at=time.time_ns())
    derive(lambda: files_below(parts, ".json", deep=False), lambda paths: _write(folder / FILE, paths))


def _note(parts: Path, name: str, speed: Speed, *, at: int) -> None:
    write_json(parts / f"{at:020d}-{uuid.uuid4().hex[:8]}.json", {"encoder": name, **vars(speed)})


def _write(path: Path, parts: Sequence[Path]) -> None:
    known: dict[str, Speed] = {}
    for part in parts:  # in the order in which they were measured
        note = read_note(part)
        if note is None:
            continue
        name, speed = note.pop("encoder"), Speed(**note)
        if name not in known or known[name].device != speed.device or known[name].images <= speed.images:
            known[name] = speed
    write_json(path, {name: vars(speed) for name, speed in sorted(known.items())})


def read_speeds(folder: Path) -> dict[str, Speed]:
    """The noted speeds; what is no note is as if it were not there."""
    try:
        content = read_note(folder / FILE) or {}
        found = {str(name): Speed(**speed) for name, speed in content.items()}
        return {name: speed for name, speed in found.items() if speed.images > 0 and speed.seconds > 0}
    except (ValueError, TypeError, AttributeError):
        return {}
