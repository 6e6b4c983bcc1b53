"""How the datasets of a results folder were read, so that their images can be found again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.atomic import write_json
from histobench.roi.data.load import scan_dataset
from histobench.roi.data.problem import Reading
from histobench.roi.plan.schema import Plan

FILE = "datasets.json"


@dataclass(frozen=True)
class DatasetNote:
    """Where a dataset is and how it was split."""

    source: str
    classes_file: str | None = None
    split: str | None = None
    group_regex: str | None = None
    group_column: str | None = None
    seed: int = 0

    def read(self) -> Reading:
        """The dataset as it was read for the run."""
        return scan_dataset(
            self.source,
            classes_file=self.classes_file,
            split=self.split,
            group_regex=self.group_regex,
            group_column=self.group_column,
            seed=self.seed,
        )


def write_dataset_notes(plan: Plan) -> None:
    """Note the datasets of a plan in its results folder; those of earlier plans stay."""
    notes = {name: vars(note) for name, note in read_dataset_notes(plan.results).items()}
    for entry in plan.datasets:
        notes[entry.name] = vars(
            DatasetNote(
                source=str(entry.source.resolve()),
                classes_file=None if entry.class2id is None else str(entry.class2id.resolve()),
                split=entry.split,
                group_regex=entry.group_regex,
                group_column=entry.group_column,
                seed=plan.seed,
            )
        )
    write_json(plan.results / FILE, notes)


def read_dataset_notes(folder: Path) -> dict[str, DatasetNote]:
    """The notes of a folder by dataset; what cannot be read is as if it were not there."""
    try:
        content: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {str(name): DatasetNote(**note) for name, note in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
