"""One task of one encoder on one dataset, as a results folder holds it."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.predictions import Predictions, TargetPredictions
from histobench.roi.results.episode_predictions import EpisodePredictions, read_episode_predictions
from histobench.roi.results.layout import RunIdentity, TaskFiles
from histobench.roi.results.writer import PREDICTED, PREDICTIONS, SITES, TARGET, TRUE, WEIGHT, digest_of
from histobench.roi.task_catalogue import CLASS, FEW_SHOT, TARGETS, a_target

# The files beside a stored run: what it said about each image, and the metrics of each episode.


def is_number(value: object) -> bool:
    """Whether a stored value is one of a metric: a number, or nothing where it is not defined."""
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
        parsed = parse_json(f"[{','.join(row[column['probabilities']] for row in rows)}]")
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
        raise HistobenchError(f"{path}: not a table of predictions ({error}); run the task again") from error
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


def read_target_predictions(run: StoredRun) -> TargetPredictions:
    """The predictions of a stored run whose target is not a class; checked as those of classes are."""
    path = TaskFiles.beside(run.path).detailed
    text, table, column = _table(path, ("img_name",))
    starts = {
        start: [name.removeprefix(start) for name in column if name.startswith(start)]
        for start in (TRUE, PREDICTED)
    }
    for start, names in starts.items():
        if not names:
            raise HistobenchError(f"{path}: there is no column that begins with {start!r}")

    def numbers(names: list[str]) -> NDArray[np.float64]:
        found = [[float(row[column[name]]) for name in names] for row in table]
        return np.array(found, dtype=np.float64).reshape(len(table), len(names))

    try:
        truth, predicted = (numbers([f"{start}{name}" for name in starts[start]]) for start in starts)
        weights = numbers([WEIGHT])[:, 0] if WEIGHT in column else None
    except ValueError as error:
        raise HistobenchError(f"{path}: not a table of predictions ({error})") from error
    _check_whole(path, text, len(table), run)
    groups = _column(table, column, "group")
    return TargetPredictions(
        kind=run.target,
        columns=tuple(starts[TRUE]),
        truth=truth,
        predicted_columns=tuple(starts[PREDICTED]),
        predicted=predicted,
        img_names=tuple(row[column["img_name"]] for row in table),
        groups=None if groups is None else tuple(groups),
        weights=weights,
        info=run.info,
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
        rows = parse_json(read_plain_text(path))["episodes"]
        names = [name for name in rows[0] if name != "episode" and all(is_number(row[name]) for row in rows)]
        return {
            name: np.array([np.nan if row[name] is None else float(row[name]) for row in rows])
            for name in names
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise HistobenchError(f"{path} does not list the metrics of episodes: {error!r}") from error


def _table(
    path: Path, needed: tuple[str, ...] = ("img_name", "true_label", "predicted_label", "probabilities")
) -> tuple[str, list[list[str]], dict[str, int]]:
    """The text of a file of predictions, its rows, and the place of each column."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        text = read_bytes(path).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        column = {name: k for k, name in enumerate(next(reader, []))}
        rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise HistobenchError(f"cannot read the predictions {path}: {why}") from error
    for name in needed:
        if name not in column:
            raise HistobenchError(f"{path}: the column {name!r} is missing")
    if min(map(len, rows), default=len(column)) < len(column):
        raise HistobenchError(f"{path}: a row of predictions was cut short; run the task again")
    return text, rows, column


def _check_whole(path: Path, text: str, rows: int, run: StoredRun) -> None:
    """Numbers from a file that was cut short or changed would stand beside those of the whole one.

    Results of other tools, and of versions before the checksum, say only how many images there were; what
    other tools count in few-shot files is not known.
    """
    noted = run.info.get(PREDICTIONS)
    known = noted if isinstance(noted, dict) else {}
    expected = known.get("rows", None if run.task == FEW_SHOT else run.num_samples)
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


@dataclass(frozen=True)
class StoredRun:
    """One `*_complete_results.json` with the predictions beside it (read when first asked for)."""

    path: Path  # the complete_results.json
    identity: RunIdentity
    task: str  # one of `task_catalogue.TASKS`, or of another tool
    setting: str  # "" or e.g. "9way_16shot"
    metrics: dict[str, float | None]
    classes: tuple[str, ...]
    info: dict[str, Any] = field(default_factory=dict)
    num_samples: int | None = None  # test images, as far as the file says

    @property
    def undefined_metrics(self) -> dict[str, str]:
        """Why metrics have no value, as far as the file says."""
        reasons = self.info.get("undefined_metrics")
        return reasons if isinstance(reasons, dict) else {}

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to keep in mind when reading the numbers, as far as the file says."""
        said = self.info.get("caveats")
        return tuple(map(str, said)) if isinstance(said, list) else ()

    @property
    def target(self) -> str:
        """The kind of target that was predicted: `class`, or one of `TARGETS`."""
        said = self.info.get(TARGET)
        return said if isinstance(said, str) and said in TARGETS else CLASS

    @cached_property
    def predictions(self) -> Predictions:
        if self.target != CLASS:
            raise HistobenchError(f"{self.path}: {a_target(self.target)} has no classes")
        return read_predictions(self)

    @cached_property
    def target_predictions(self) -> TargetPredictions:
        return read_target_predictions(self)

    @cached_property
    def episodes(self) -> EpisodePredictions | None:
        """What each episode or run said about the images of `predictions`; None where it was not kept."""
        return read_episodes_of(self)

    @cached_property
    def per_episode(self) -> dict[str, NDArray[np.float64]] | None:
        """The metrics of each episode or training run, name -> [episodes]; None where they are of one."""
        return read_episodes(TaskFiles.beside(self.path).per_episode)
