"""What a results folder notes: how its datasets were read, and how fast encoders were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from histobench.core.claim import exclusive
from histobench.core.errors import HistobenchError
from histobench.core.files import read_note, write_json
from histobench.roi.data.source import ACCEPTED, DatasetSource
from histobench.roi.options import Plan
from histobench.roi.registry.install import accepted_files
from histobench.roi.results.layout import stored_in

DATASETS = "datasets.json"
SPEEDS = "speeds.json"
#: Fewer images than this say nothing about speed.
LEAST_IMAGES = 64


def write_dataset_notes(plan: Plan) -> None:
    """Note the datasets of a plan in its results folder; those of earlier plans stay."""
    with exclusive(plan.results / f".{DATASETS}.lock"):
        notes = read_note(plan.results / DATASETS) or {}
        for entry in plan.datasets:
            # The name in the plan is the key; what is found again must not depend on the current folder.
            found = replace(DatasetSource.of(entry, plan), name=None, source=str(entry.source.resolve()))
            if entry.class2id is not None:
                found = replace(found, classes_file=str(entry.class2id.resolve()))
            before = notes.get(entry.name)
            if before and stored_in(plan.results / entry.name):
                _check_same_split(plan.results, entry.name, DatasetSource.from_note(before), found)
            accepted = accepted_files(entry.source)
            notes[entry.name] = {**found.as_note(), **({ACCEPTED: accepted} if accepted else {})}
        write_json(plan.results / DATASETS, notes)


def _check_same_split(results: Path, name: str, before: DatasetSource, now: DatasetSource) -> None:
    """Refuse what would replace results of another split, which could not be compared with the new ones."""
    was = {each: getattr(before, each) for each in ("split", "group_regex")}
    if (before.split or now.split) and any(getattr(now, each) != value for each, value in was.items()):
        words = ", ".join(f"`{each}` {value}" for each, value in was.items() if value) or "its own"
        raise HistobenchError(
            f"{results} has results of {name} with another split ({words}); give another `results` folder "
            f"or delete {results / name}. To average over many splits, keep this one and add `splits` 5x5"
        )


def read_dataset_notes(folder: Path) -> dict[str, DatasetSource]:
    notes = read_note(folder / DATASETS) or {}
    return {name: DatasetSource.from_note(note) for name, note in notes.items()}


@dataclass(frozen=True)
class Speed:
    """Images through the encoder and the seconds it took; decoding and resizing are not counted."""

    images: int
    seconds: float
    device: str

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def write_speeds(folder: Path, measured: Mapping[str, Speed]) -> None:
    """Note speeds in a results folder; a measurement on more images replaces an older one."""
    if not measured:
        return
    with exclusive(folder / f".{SPEEDS}.lock"):
        known = read_speeds(folder)
        for name, speed in measured.items():
            old = known.get(name)
            if old is None or old.device != speed.device or old.images <= speed.images:
                known[name] = speed
        write_json(folder / SPEEDS, {name: vars(speed) for name, speed in sorted(known.items())})


def read_speeds(folder: Path) -> dict[str, Speed]:
    return {name: Speed(**speed) for name, speed in (read_note(folder / SPEEDS) or {}).items()}
