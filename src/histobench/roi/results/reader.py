"""Reads a results folder back: every stored run, with its predictions when asked for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import files_below, read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.results.changed_data import changes_told
from histobench.roi.results.layout import COMPLETE, SPLITS, RunIdentity
from histobench.roi.results.stored_run import StoredRun, is_number


def load_runs(results_dir: str | Path) -> list[StoredRun]:
    """Every `*_complete_results.json` under a results folder, in the order of their paths."""
    folder = existing_folder(results_dir)
    runs = changes_told([read_run(path) for path in results_files(folder)])
    if not runs:
        raise HistobenchError(
            f"no results in {folder}: no file ends with {COMPLETE}; make some first, "
            "by `histobench run`, `histobench evaluate` or hb.run"
        )
    return runs


def results_files(folder: Path) -> list[Path]:
    """Every `*_complete_results.json` below a folder, without the hidden files that other systems leave.

    Those of repeated splits (`splits/`) are results of their own, see `split_runs`.
    """
    return [path for path in _all_results(folder) if SPLITS not in path.relative_to(folder).parts]


def split_runs(results_dir: str | Path) -> list[StoredRun]:
    folder = existing_folder(results_dir)
    runs = [read_run(path) for path in _all_results(folder) if SPLITS in path.parts]
    known = [run for run in runs if isinstance(run.info.get("split"), dict)]
    if not known:
        raise HistobenchError(f"no results over splits in {folder}: run with `splits` 5x2")
    return known


def existing_folder(results_dir: str | Path) -> Path:
    """The folder, or an error that names those beside it."""
    folder = Path(results_dir)
    if folder.is_file():
        raise HistobenchError(f"no results folder at {folder}: it is a file; give the folder that it is in")
    if not folder.is_dir():
        beside = [each.name for each in folder.absolute().parent.glob("*") if each.is_dir()]
        hint = did_you_mean(folder.name, beside, all_if_none=False)
        raise HistobenchError(f"no results folder at {folder}{hint and f'; {hint}'}")
    return folder


def _all_results(folder: Path) -> list[Path]:
    return [path for path in files_below(folder, COMPLETE) if not path.name.startswith(".")]


def read_content(path: Path) -> dict[str, Any]:
    content = parse_json(read_plain_text(path, encoding="utf-8-sig"), parse_constant=lambda name: None)
    if not isinstance(content, dict):
        raise TypeError("not an object")
    return content


def read_run(path: Path) -> StoredRun:
    """One stored run from its `*_complete_results.json`; of its metrics, those that are numbers."""
    try:
        content = read_content(path)
        info: dict[str, Any] = content["additional_info"] or {}

        def text(key: str) -> str:
            return str(info.get(key) or "")

        return StoredRun(
            path=path,
            identity=RunIdentity(
                **{each.name: text(each.name) for each in fields(RunIdentity) if each.name != "seed"},
                seed=int(info.get("seed") or 0),
            ),
            task=str(content["task_name"]),
            setting=text("setting"),
            metrics={name: value for name, value in content["metrics"].items() if is_number(value)},
            classes=tuple(map(str, info.get("classes") or range(content["num_classes"]))),
            info=info,
            num_samples=samples if isinstance(samples := content.get("num_samples"), int) else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise HistobenchError(
            f"{path} is not a results file of histobench: {why}; if it is damaged, delete it and run again"
        ) from error
