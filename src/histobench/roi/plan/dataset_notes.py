"""How the datasets of a results folder were read, so that their images can be found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from histobench.core.claim import exclusive
from histobench.core.files import read_note, write_json
from histobench.roi.data.source import ACCEPTED, DatasetSource
from histobench.roi.options import Plan
from histobench.roi.registry.install import accepted_files

FILE = "datasets.json"


def write_dataset_notes(plan: Plan) -> None:
    """Note the datasets of a plan in its results folder; those of earlier plans stay."""
    with exclusive(plan.results / f".{FILE}.lock"):
        notes = read_note(plan.results / FILE) if read_dataset_notes(plan.results) else None
        for entry in plan.datasets:
            # The name in the plan is the key; what is found again must not depend on the current folder.
            found = replace(DatasetSource.of(entry, plan), name=None, source=str(entry.source.resolve()))
            if entry.class2id is not None:
                found = replace(found, classes_file=str(entry.class2id.resolve()))
            accepted = accepted_files(entry.source)
            more = {ACCEPTED: accepted} if accepted else {}
            notes = {**(notes or {}), entry.name: {**found.as_note(), **more}}
        write_json(plan.results / FILE, notes)


def read_dataset_notes(folder: Path) -> dict[str, DatasetSource]:
    """Read the notes of a folder by dataset; a file that does not hold any is ignored."""
    try:
        content = read_note(folder / FILE) or {}
        return {str(name): DatasetSource.from_note(note) for name, note in content.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
