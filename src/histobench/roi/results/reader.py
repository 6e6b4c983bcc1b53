"""Reads a results folder back: every stored run, with its predictions when asked for."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.predictions import Predictions
from histobench.roi.results.layout import COMPLETE, TaskFiles
from histobench.roi.results.stored_run import RunIdentity, StoredRun


def load_runs(results_dir: str | Path) -> list[StoredRun]:
    """Every `*_complete_results.json` under a results folder, in the order of their paths."""
    folder = Path(results_dir)
    if not folder.is_dir():
        raise HistobenchError(f"no results folder at {folder}")
    runs = [read_run(path) for path in sorted(folder.rglob(f"*{COMPLETE}"))]
    if not runs:
        raise HistobenchError(
            f"no results in {folder}: no file ends with {COMPLETE}; run `histobench evaluate` or the "
            "01-ROI_BenchMark_Main.py script with --log_dir pointing there"
        )
    return runs


def read_run(path: Path) -> StoredRun:
    """One stored run from its `*_complete_results.json`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        info: dict[str, Any] = content["additional_info"]
        metrics = {name: value for name, value in content["metrics"].items() if not isinstance(value, dict)}
        return StoredRun(
            path=path,
            identity=RunIdentity(
                dataset=info.get("dataset", ""),
                encoder=info.get("encoder", ""),
                preset=info.get("preset", ""),
                seed=int(info.get("seed", 0)),
                fingerprint=info.get("fingerprint", ""),
                description=info.get("description", ""),
            ),
            task=content["task_name"],
            setting=info.get("setting", ""),
            metrics=metrics,
            classes=tuple(info.get("classes") or map(str, range(content["num_classes"]))),
            info=info,
        )
    except OSError as error:
        raise HistobenchError(f"cannot read {path}: {error.strerror or error}") from error
    except KeyError as error:
        raise HistobenchError(f"{path} is not a results file of histobench: it has no {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise HistobenchError(f"{path} is not a results file of histobench: {error}") from error


def read_predictions(run: StoredRun) -> Predictions:
    """The predictions of a stored run; images that took part in no episode are left out."""
    path = TaskFiles.beside(run.path).detailed
    rows, column = _rows_with_probabilities(path)
    try:
        # One parser call for the whole column: folders hold thousands of these files.
        parsed = json.loads(f"[{','.join(row[column['probabilities']] for row in rows)}]")
        if len(parsed) != len(rows):
            raise ValueError("a list of probabilities is broken")
        probabilities = np.array(parsed, dtype=np.float64).reshape(len(rows), -1)
        labels, predicted = (
            np.array(_whole_numbers([row[column[name]] for row in rows]), dtype=np.int64)
            for name in ("true_label", "predicted_label")
        )
        episodes = _column(rows, column, "num_episodes")
        counted = np.array(list(map(int, episodes)), dtype=np.int64) if episodes and all(episodes) else None
    except (ValueError, TypeError) as error:
        raise _first_problem(path, column) from error
    groups = _column(rows, column, "group")
    return Predictions(
        probabilities=probabilities,
        labels=labels,
        predicted=predicted,
        classes=run.classes,
        img_names=tuple(row[column["img_name"]] for row in rows),
        groups=tuple(groups) if groups else None,
        episodes=counted,
        info=run.info,
    )


def _rows_with_probabilities(path: Path) -> tuple[list[list[str]], dict[str, int]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            reader = csv.reader(handle)
            column = {name: k for k, name in enumerate(next(reader, []))}
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise HistobenchError(f"cannot read the predictions {path}: {why}") from error
    for name in ("img_name", "true_label", "predicted_label", "probabilities"):
        if name not in column:
            raise HistobenchError(f"{path}: the column {name!r} is missing")
    if min(map(len, rows), default=len(column)) < len(column):
        raise _first_problem(path, column)
    return [row for row in rows if row[column["probabilities"]]], column


def _whole_numbers(texts: list[str]) -> list[int]:
    try:
        return list(map(int, texts))
    except ValueError:
        return [int(float(text)) for text in texts]  # other tools write 1.0


def _column(rows: list[list[str]], column: dict[str, int], name: str) -> list[str] | None:
    return [row[column[name]] for row in rows] if name in column else None


def _first_problem(path: Path, column: dict[str, int]) -> HistobenchError:
    """What is wrong with the first row that cannot be read."""
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.reader(handle)
        next(reader, None)
        for row in reader:
            if row and len(row) < len(column):
                return HistobenchError(f"{path}:{reader.line_num}: not a row of predictions (cut short)")
            if not row or not row[column["probabilities"]]:
                continue
            try:
                for value in json.loads(row[column["probabilities"]]):
                    float("nan" if value is None else value)
                for name in ("true_label", "predicted_label"):
                    int(float(row[column[name]]))
                if "num_episodes" in column:
                    int(row[column["num_episodes"]] or 0)
            except (ValueError, TypeError) as error:
                return HistobenchError(f"{path}:{reader.line_num}: not a row of predictions ({error})")
    return HistobenchError(f"{path}: rows have different numbers of probabilities")
