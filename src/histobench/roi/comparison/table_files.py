"""The comparison table of one dataset as a file: one process writes it, another builds the report from it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.files import read_bytes, unreadable
from histobench.core.record_files import read_record, write_record
from histobench.core.version import __version__
from histobench.roi.comparison.comparison import CompareSettings, DatasetTable, dataset_table
from histobench.roi.comparison.selection import distinct_names
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun


def write_table(path: Path, dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> None:
    """Compare runs on one dataset, and write the table with all that it depends on."""
    known = _known(runs, settings)  # before they are read: what changes meanwhile is made anew
    write_record(path, dataset_table(dataset, runs, settings), about=known)


def read_table(path: Path, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable | None:
    """The table of a file; None where it is no table of these runs as they are now."""
    return read_record(path, DatasetTable, about=_known(runs, settings))


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
