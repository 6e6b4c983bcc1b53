"""How many images a second each encoder was measured to take while features were computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from histobench.core.claim import exclusive
from histobench.core.files import read_note, write_json

FILE = "speeds.json"
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
    """Note speeds in a results folder; a measurement on more images replaces an older one."""
    if not measured:
        return
    with exclusive(folder / f".{FILE}.lock"):
        known = read_speeds(folder)
        for name, speed in measured.items():
            old = known.get(name)
            if old is None or old.device != speed.device or old.images <= speed.images:
                known[name] = speed
        write_json(folder / FILE, {name: vars(speed) for name, speed in sorted(known.items())})


def read_speeds(folder: Path) -> dict[str, Speed]:
    """Read the noted speeds; a file that does not hold any is ignored."""
    try:
        content = read_note(folder / FILE) or {}
        found = {str(name): Speed(**speed) for name, speed in content.items()}
        return {name: speed for name, speed in found.items() if speed.images > 0 and speed.seconds > 0}
    except (ValueError, TypeError, AttributeError):
        return {}
