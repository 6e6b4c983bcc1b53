"""The units that compare: one table of all encoders on one dataset, task by task, for the report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.files import files_below, read_bytes
from histobench.core.record_files import read_record, write_record
from histobench.core.version import __version__
from histobench.roi.comparison.comparison import DatasetTable, TableMaker, dataset_table
from histobench.roi.comparison.selection import by_task, distinct_names
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.layout import COMPLETE, SPLITS, TaskFiles
from histobench.roi.results.reader import read_run
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import WITH_METHODS
from histobench.work.run_folder import DONE, RunFolder, Unit


def write_table(path: Path, dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> None:
    known = _known(runs, settings)  # before they are read: what changes meanwhile is made anew
    write_record(path, dataset_table(dataset, runs, settings), about=known)


def read_table(path: Path, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable | None:
    """The table of a file; None unless it is the table of these runs as they are now."""
    return read_record(path, DatasetTable, about=_known(runs, settings))


def _known(runs: Sequence[StoredRun], settings: CompareSettings) -> dict[str, Any]:
    return {
        "version": __version__,
        "settings": asdict(settings),
        # Caveats also come from what other tasks were run on, see `changed_data`.
        "runs": [[name, _digest(run), *run.caveats] for name, run in distinct_names(runs).items()],
    }


def _digest(run: StoredRun) -> str:
    files = TaskFiles.beside(run.path)
    digest = hashlib.sha256()
    for path in (files.complete, files.detailed, files.per_episode, files.episode_predictions):
        digest.update(hashlib.sha256(read_bytes(path) if path.exists() else b"").digest())
    return digest.hexdigest()


def compare(folder: RunFolder, unit: Unit) -> None:
    files = []
    for setting, runs in _runs_of(unit).items():  # none where the task stores no predictions, or was skipped
        several = f"-{setting}" if unit.spec["task"] in WITH_METHODS else ""
        files.append(folder.path / "tables" / f"{unit.id}{several}.json")
        write_table(files[-1], unit.dataset, runs, CompareSettings())
    folder.finish(unit, files=files)


def _runs_of(unit: Unit) -> dict[str, list[StoredRun]]:
    spec, root = unit.spec, Path(unit.spec["folder"])
    paths = [
        path
        for path in files_below(root, COMPLETE)
        if not path.name.startswith(".")
        and {spec["preset"], spec["task"]} <= set(path.relative_to(root).parts)
        and SPLITS not in path.relative_to(root).parts
    ]
    found = {
        setting: [run for run in runs if run.identity.dataset == unit.dataset]
        for (task, preset, setting, seed), runs in by_task([read_run(path) for path in paths]).items()
        if (task, preset, seed) == (spec["task"], spec["preset"], spec["seed"])
    }
    return {setting: runs for setting, runs in found.items() if runs}


def tables_of(folder: RunFolder) -> TableMaker:
    """The tables that units have made, where they are of the runs that are stored now; else made anew."""
    made = {
        (unit.dataset, unit.spec["preset"], unit.spec["task"], unit.spec["seed"]): note["files"]
        for unit in folder.units()
        if unit.kind == "compare" and (note := folder.output(unit.id)) is not None and note["state"] == DONE
    }

    def table_of(dataset: str, runs: Sequence[StoredRun], settings: CompareSettings) -> DatasetTable:
        identity = runs[0].identity
        for path in made.get((dataset, identity.preset, runs[0].task, identity.seed), ()):
            found = read_table(Path(path), runs, settings)
            if found is not None:
                return found
        return dataset_table(dataset, runs, settings)

    return table_of
