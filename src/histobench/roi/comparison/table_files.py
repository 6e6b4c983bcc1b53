"""A table of one dataset in a file, made by whoever has time for it, for the one who puts all together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench import __version__
from histobench.core.atomic import write_text
from histobench.core.dataclass_values import as_plain, from_plain
from histobench.core.reading import read_bytes, read_note, unreadable
from histobench.roi.comparison.comparison import CompareSettings, DatasetTable, dataset_table
from histobench.roi.comparison.selection import distinct_names
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun


def write_table(path: Path, dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> None:
    """Compare runs on one dataset, and write the table with all that it depends on."""
    known = _known(runs, settings)  # before they are read: what changes meanwhile is made anew
    table = as_plain(dataset_table(dataset, runs, settings))
    write_text(path, json.dumps({**known, "table": table, "sum": _sum(table)}))


def read_table(path: Path, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable | None:
    """The table of a file; None where it is no table of these runs as they are now."""
    content = read_note(path)
    if content is None or content.pop("sum", None) != _sum(content.get("table")):
        return None
    if {**content, "table": None} != {**_known(runs, settings), "table": None}:
        return None
    try:
        return from_plain(DatasetTable, content["table"])
    except (KeyError, ValueError):
        return None


def _sum(table: Any) -> str:
    """A checksum: a damaged figure would be shown as it stands."""
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()


def _known(runs: Sequence[StoredRun], settings: CompareSettings) -> dict[str, Any]:
    return {
        "version": __version__,
        "settings": asdict(settings),
        # Caveats also come from what other tasks were run on, see `changed_data`.
        "runs": [[name, _digest(run), *run.caveats] for name, run in distinct_names(runs).items()],
    }


def _digest(run: StoredRun) -> str:
    """Of all files that a run is read from."""
    files = TaskFiles.beside(run.path)
    digest = hashlib.sha256()
    for path in (files.complete, files.detailed, files.per_episode, files.episode_predictions):
        try:
            content = read_bytes(path)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise unreadable(path, error) from error
        digest.update(f"{len(content)}:".encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()
