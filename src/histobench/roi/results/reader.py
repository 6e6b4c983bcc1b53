"""Reads a results folder back: every stored run, with its predictions when asked for."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.reading import files_below
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions, read_episode_predictions
from histobench.roi.results.layout import COMPLETE, SPLITS, TaskFiles
from histobench.roi.results.stored_run import RunIdentity, StoredRun
from histobench.roi.results.writer import PREDICTIONS, SITES, digest_of


def load_runs(results_dir: str | Path) -> list[StoredRun]:
    """Every `*_complete_results.json` under a results folder, in the order of their paths."""
    folder = Path(results_dir)
    if not folder.is_dir():
        raise HistobenchError(f"no results folder at {folder}")
    runs = [read_run(path) for path in results_files(folder)]
    if not runs:
        raise HistobenchError(
            f"no results in {folder}: no file ends with {COMPLETE}; run `histobench evaluate` or the "
            "01-ROI_BenchMark_Main.py script with --log_dir pointing there"
        )
    return runs


def results_files(folder: Path) -> list[Path]:
    """Every `*_complete_results.json` below a folder, without the hidden files that other systems leave.

    Those of repeated splits (`splits/`) are results of their own, see `split_runs`.
    """
    return [path for path in _all_results(folder) if SPLITS not in path.relative_to(folder).parts]


def split_runs(results_dir: str | Path) -> list[StoredRun]:
    """Every run on a split of a repeated cross-validation below a results folder."""
    folder = Path(results_dir)
    if not folder.is_dir():
        raise HistobenchError(f"no results folder at {folder}")
    runs = [read_run(path) for path in _all_results(folder) if SPLITS in path.parts]
    known = [run for run in runs if isinstance(run.info.get("split"), dict)]
    if not known:
        raise HistobenchError(f"no results over splits in {folder}: run with `splits` 5x2, or `folds` 5")
    return known


def _all_results(folder: Path) -> list[Path]:
    return [path for path in files_below(folder, COMPLETE) if not path.name.startswith(".")]


def read_content(path: Path) -> dict[str, Any]:
    """The content of a `*_complete_results.json`; NaN and infinities, which are no JSON, become null."""
    content = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=lambda name: None)
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
                dataset=text("dataset"),
                encoder=text("encoder"),
                preset=text("preset"),
                seed=int(info.get("seed") or 0),
                fingerprint=text("fingerprint"),
                description=text("description"),
                size=text("size"),
            ),
            task=str(content["task_name"]),
            setting=text("setting"),
            metrics={name: value for name, value in content["metrics"].items() if _is_number(value)},
            classes=tuple(map(str, info.get("classes") or range(content["num_classes"]))),
            info=info,
            num_samples=samples if isinstance(samples := content.get("num_samples"), int) else None,
        )
    except OSError as error:
        raise HistobenchError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise HistobenchError(
            f"{path} is not a results file of histobench: {why}; if it is damaged, delete it and run again"
        ) from error


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def read_predictions(run: StoredRun) -> Predictions:
    """The predictions of a stored run; images that took part in no episode are left out.

    A file that is not the one its results were computed from is an error: see `_check_whole`.
    """
    path = TaskFiles.beside(run.path).detailed
    text, table, column = _table(path)
    rows = [row for row in table if row[column["probabilities"]]]
    try:
        # One parser call for the whole column: folders hold thousands of these files.
        parsed = json.loads(f"[{','.join(row[column['probabilities']] for row in rows)}]")
        if len(parsed) != len(rows):
            raise ValueError("a list of probabilities is broken")
        shape = (len(rows), -1) if rows else (0, len(run.classes))
        probabilities = np.array(parsed, dtype=np.float64).reshape(shape)
        labels, predicted = (
            np.array(_whole_numbers([row[column[name]] for row in rows]), dtype=np.int64)
            for name in ("true_label", "predicted_label")
        )
        if min(labels.min(initial=0), predicted.min(initial=0)) < 0:
            raise ValueError("a label is negative")
        episodes = _column(rows, column, "num_episodes")
        counted = np.array(list(map(int, episodes)), dtype=np.int64) if episodes and all(episodes) else None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _first_problem(path, column) from error
    _check_whole(path, text, len(table), run)
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
        sites={
            name: tuple(row[column[name]] for row in rows)
            for name in map(str, run.info.get(SITES) or ())
            if name in column
        },
    )


def read_episodes_of(run: StoredRun) -> EpisodePredictions | None:
    """What each episode or run of a stored run said about the images of its predictions, in their order.

    A file of another evaluation (its labels or values are not those of the run) counts as none.
    """
    episodes = read_episode_predictions(TaskFiles.beside(run.path).episode_predictions, run.setting)
    if episodes is None:
        return None
    # The images without predictions are those that took part in no episode.
    seen = np.flatnonzero((episodes.votes >= 0).any(axis=1))
    kept = episodes if len(seen) == len(episodes.labels) else episodes.taken(seen)
    labels = run.predictions.labels
    if len(kept.labels) != len(labels) or (kept.labels != labels).any():
        return None
    reported = run.metrics.get("accuracy")
    images = (kept.votes >= 0).sum(axis=0)
    right = (kept.votes == labels[:, None]).sum(axis=0)[images > 0] / images[images > 0]
    fits = reported is not None and len(right) > 0 and abs(float(right.mean()) - reported) < 1e-6
    return kept if fits else None


def read_episodes(path: Path) -> dict[str, NDArray[np.float64]] | None:
    """The metrics of each episode of a few-shot run, name -> [episodes]; None where there is no file."""
    if not path.exists():
        return None
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["episodes"]
        names = [name for name in rows[0] if name != "episode" and all(_is_number(row[name]) for row in rows)]
        return {
            name: np.array([np.nan if row[name] is None else float(row[name]) for row in rows])
            for name in names
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise HistobenchError(f"{path} does not list the metrics of episodes: {error!r}") from error


def _table(path: Path) -> tuple[str, list[list[str]], dict[str, int]]:
    """The text of a file of predictions, its rows, and the place of each column."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
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
    return text, rows, column


def _check_whole(path: Path, text: str, rows: int, run: StoredRun) -> None:
    """Numbers from a file that was cut short or changed would stand beside those of the whole one.

    Results of other tools, and of versions before the checksum, say only how many images there were; what
    other tools count in few-shot files is not known.
    """
    noted = run.info.get(PREDICTIONS)
    known = noted if isinstance(noted, dict) else {}
    expected = known.get("rows", None if run.task == "Few-shot" else run.num_samples)
    if expected is not None and rows != expected:
        raise HistobenchError(
            f"{path} has {rows} rows, but {run.path.name} was computed from {expected}: it was cut short or "
            "changed; restore it, or run the task again"
        )
    if "sha256" in known and digest_of(text) != known["sha256"]:
        raise HistobenchError(
            f"{path} is not the file that {run.path.name} was computed from (checksum): it was changed; "
            "restore it, or run the task again"
        )


def _whole_numbers(texts: list[str]) -> list[int]:
    try:
        return list(map(int, texts))
    except ValueError:
        return [int(float(text)) for text in texts]  # other tools write 1.0


def _column(rows: list[list[str]], column: dict[str, int], name: str) -> list[str] | None:
    return [row[column[name]] for row in rows] if name in column else None


def _first_problem(path: Path, column: dict[str, int]) -> HistobenchError:
    """What is wrong with the first row that cannot be read."""
    with path.open(newline="", encoding="utf-8-sig") as handle:
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
                    if int(float(row[column[name]])) < 0:
                        raise ValueError(f"{name} is negative")
                if "num_episodes" in column:
                    int(row[column["num_episodes"]] or 0)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                return HistobenchError(f"{path}:{reader.line_num}: not a row of predictions ({error})")
    return HistobenchError(f"{path}: rows have different numbers of probabilities")
