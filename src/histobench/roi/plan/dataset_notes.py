"""How the datasets of a results folder were read, so that their images can be found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from histobench.core.atomic import write_json
from histobench.roi.data.source import DatasetSource
from histobench.roi.plan.schema import Plan

FILE = "datasets.json"


def write_dataset_notes(plan: Plan) -> None:
    """Note the datasets of a plan in its results folder; those of earlier plans stay."""
    notes = {name: note.as_note() for name, note in read_dataset_notes(plan.results).items()}
    for entry in plan.datasets:
        # The name in the plan is the key; what is found again must not depend on the current folder.
        found = replace(entry.reading(plan.seed), name=None, source=str(entry.source.resolve()))
        if entry.class2id is not None:
            found = replace(found, classes_file=str(entry.class2id.resolve()))
        notes[entry.name] = found.as_note()
    write_json(plan.results / FILE, notes)


def read_dataset_notes(folder: Path) -> dict[str, DatasetSource]:
    """The notes of a folder by dataset; what cannot be read is as if it were not there."""
    try:
        content: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {str(name): DatasetSource.from_note(note) for name, note in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
