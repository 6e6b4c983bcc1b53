"""Images per second of the encoders of a results folder, where a run measured them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from histobench.roi.plan.speeds import FILE, Speed, read_speeds


def measured_speed(results_dir: Path) -> tuple[dict[str, float], str]:
    """Encoder -> images per second, and the device they were measured on.

    Speeds of different devices do not stand on one axis: the device that measured most encoders is shown.
    """
    measured: list[tuple[str, Speed]] = []
    for path in sorted(results_dir.rglob(FILE)):
        measured += read_speeds(path.parent).items()
    if not measured:
        return {}, ""
    device = Counter(speed.device for _, speed in measured).most_common(1)[0][0]
    best: dict[str, Speed] = {}
    for name, speed in measured:
        if speed.device == device and (name not in best or speed.images > best[name].images):
            best[name] = speed
    return {name: round(speed.images_per_second, 2) for name, speed in best.items()}, device
