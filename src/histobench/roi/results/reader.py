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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistobenchError(f"{path} is not a results file of histobench: {error!r}") from error


def read_predictions(run: StoredRun) -> Predictions:
    """The predictions of a stored run; images that took part in no episode are left out."""
    path = TaskFiles.beside(run.path).detailed
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    names: list[str] = []
    labels: list[int] = []
    predicted: list[int] = []
    probabilities: list[list[float]] = []
    groups: list[str] = []
    episodes: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            for line, row in enumerate(csv.DictReader(handle), start=2):
                if not row["probabilities"]:
                    continue
                try:
                    probabilities.append(
                        [np.nan if p is None else float(p) for p in json.loads(row["probabilities"])]
                    )
                    labels.append(int(float(row["true_label"])))
                    predicted.append(int(float(row["predicted_label"])))
                except (ValueError, TypeError) as error:
                    raise HistobenchError(f"{path}:{line}: not a row of predictions ({error})") from error
                names.append(row["img_name"])
                if row.get("group") is not None:
                    groups.append(row["group"])
                if row.get("num_episodes"):
                    episodes.append(int(row["num_episodes"]))
    except OSError as error:
        raise HistobenchError(f"cannot read the predictions {path}: {error.strerror}") from error
    except KeyError as error:
        raise HistobenchError(f"{path}: the column {error} is missing") from error
    if len({len(row) for row in probabilities}) > 1:
        raise HistobenchError(f"{path}: rows have different numbers of probabilities")
    return Predictions(
        probabilities=np.asarray(probabilities, dtype=np.float64).reshape(len(labels), -1),
        labels=np.asarray(labels, dtype=np.int64),
        predicted=np.asarray(predicted, dtype=np.int64),
        classes=run.classes,
        img_names=tuple(names),
        groups=tuple(groups) if groups and len(groups) == len(names) else None,
        episodes=np.asarray(episodes, dtype=np.int64) if len(episodes) == len(names) and names else None,
        info=run.info,
    )
