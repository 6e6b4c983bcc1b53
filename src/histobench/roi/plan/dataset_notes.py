"""How the datasets of a results folder were read, so that their images can be found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from histobench.core.files import create_json, derive, files_below, read_note, write_json
from histobench.roi.data.source import ACCEPTED, DatasetSource
from histobench.roi.options import Plan
from histobench.roi.registry.install import accepted_files

FILE = "datasets.json"
#: One file per dataset, of which `FILE` is a view: two plans that note different datasets do not meet.
PARTS = "work/datasets"


def write_dataset_notes(plan: Plan) -> None:
    """Note the datasets of a plan in its results folder; those of earlier plans stay."""
    parts = plan.results / PARTS
    for name, note in read_dataset_notes(plan.results).items():
        if not (parts / f"{name}.json").exists():  # noted by an earlier version
            create_json(parts / f"{name}.json", note.as_note())
    for entry in plan.datasets:
        # The name in the plan is the key; what is found again must not depend on the current folder.
        found = replace(DatasetSource.of(entry, plan), name=None, source=str(entry.source.resolve()))
        if entry.class2id is not None:
            found = replace(found, classes_file=str(entry.class2id.resolve()))
        accepted = accepted_files(entry.source)
        more = {ACCEPTED: accepted} if accepted else {}
        write_json(parts / f"{entry.name}.json", {**found.as_note(), **more})
    derive(lambda: files_below(parts, ".json", deep=False), lambda paths: _write(plan.results / FILE, paths))


def _write(path: Path, parts: Sequence[Path]) -> None:
    notes = ((part.stem, read_note(part)) for part in parts if not part.name.startswith("."))
    write_json(path, {name: note for name, note in notes if note is not None})


def read_dataset_notes(folder: Path) -> dict[str, DatasetSource]:
    """The notes of a folder by dataset; what is no note is as if it were not there."""
    try:
        content = read_note(folder / FILE) or {}
        return {str(name): DatasetSource.from_note(note) for name, note in content.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
