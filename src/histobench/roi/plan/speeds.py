"""How many images a second each encoder was measured to take while features were computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.atomic import write_json
from histobench.roi.encoders.own_name import label_of

if TYPE_CHECKING:
    from histobench.roi.features.extract import Extraction

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
        """The rate."""
        return self.images / self.seconds


def measured_speeds(extractions: Sequence[Extraction], device: str) -> dict[str, Speed]:
    """The speed of every encoder that computed enough images, by the name it was asked for."""
    images: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for extraction in extractions:
        name = label_of(extraction.asked)
        images[name] = images.get(name, 0) + extraction.computed
        # The seconds are those of all splits together.
        seconds[name] = max(seconds.get(name, 0.0), extraction.forward_seconds)
    return {
        name: Speed(images[name], round(seconds[name], 3), device)
        for name in images
        if images[name] >= LEAST_IMAGES and seconds[name] > 0
    }


def write_speeds(folder: Path, measured: Mapping[str, Speed]) -> None:
    """Note speeds in a results folder; a measurement on more images replaces an older one."""
    known = read_speeds(folder)
    for name, speed in measured.items():
        if name not in known or known[name].device != speed.device or known[name].images <= speed.images:
            known[name] = speed
    if measured:
        write_json(folder / FILE, {name: vars(speed) for name, speed in sorted(known.items())})


def read_speeds(folder: Path) -> dict[str, Speed]:
    """The noted speeds; what cannot be read is as if it were not there."""
    try:
        content: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
        found = {str(name): Speed(**speed) for name, speed in content.items()}
        return {name: speed for name, speed in found.items() if speed.images > 0 and speed.seconds > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def device_name(device: str) -> str:
    """A device in words: the name of the GPU, or the number of CPU threads that PyTorch uses."""
    import platform

    import torch

    kind = torch.device(device)
    if kind.type == "cuda":
        return str(torch.cuda.get_device_name(kind))
    if kind.type == "cpu":
        threads = torch.get_num_threads()
        return f"CPU ({platform.machine()}, {threads} thread{'' if threads == 1 else 's'})"
    return kind.type.upper()
