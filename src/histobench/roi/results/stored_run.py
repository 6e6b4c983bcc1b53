"""One task of one encoder on one dataset, as a results folder holds it."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
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


def is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def read_predictions(run: StoredRun) -> Predictions:
    """The predictions of a stored run; images that took part in no episode are left out."""
    if run.target != CLASS:
        raise HistobenchError(f"{run.path}: {a_target(run.target)} has no classes")
    table, column = _table(run)

    def cells(name: str) -> tuple[str, ...]:
        return tuple(row[column[name]] for row in rows) if name in column else ()

    try:
        rows = [row for row in table if row[column["probabilities"]]]
        # One parser call for the whole column: folders hold thousands of these files.
        parsed = parse_json(f"[{','.join(cells('probabilities'))}]")
        if len(parsed) != len(rows):
            raise ValueError("a list of probabilities is broken")
        shape = (len(rows), -1) if rows else (0, len(run.classes))
        probabilities = np.array(parsed, dtype=np.float64).reshape(shape)
        labels, predicted = (
            np.array(_whole_numbers(cells(name)), dtype=np.int64)
            for name in ("true_label", "predicted_label")
        )
        if min(labels.min(initial=0), predicted.min(initial=0)) < 0:
            raise ValueError("a label is negative")
        episodes = cells("num_episodes")
        return Predictions(
            probabilities=probabilities,
            labels=labels,
            predicted=predicted,
            classes=run.classes,
            img_names=cells("img_name"),
            groups=cells("group") or None,
            episodes=np.array(list(map(int, episodes))) if all(episodes) and episodes else None,
            info=run.info,
            sites={name: cells(name) for name in map(str, run.info.get(SITES) or ()) if name in column},
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise _not_a_table(run, error) from error


def read_target_predictions(run: StoredRun) -> TargetPredictions:
    table, column = _table(run)

    def numbers(start: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        names = [name for name in column if name.startswith(start)]
        found = np.array([[float(row[column[name]]) for name in names] for row in table], dtype=np.float64)
        return tuple(name.removeprefix(start) for name in names), found.reshape(len(table), len(names))

    try:
        columns, truth = numbers(TRUE)
        predicted_columns, predicted = numbers(PREDICTED)
        return TargetPredictions(
            kind=run.target,
            columns=columns,
            truth=truth,
            predicted_columns=predicted_columns,
            predicted=predicted,
            img_names=tuple(row[column["img_name"]] for row in table),
            groups=tuple(row[column["group"]] for row in table) if "group" in column else None,
            weights=numbers(WEIGHT)[1][:, 0] if WEIGHT in column else None,
            info=run.info,
        )
    except (ValueError, LookupError) as error:
        raise _not_a_table(run, error) from error


def _not_a_table(run: StoredRun, error: Exception) -> HistobenchError:
    path = TaskFiles.beside(run.path).detailed
    return HistobenchError(f"{path}: not a table of predictions ({error!r}); run the task again")


def read_episodes_of(run: StoredRun) -> EpisodePredictions | None:
    """What each episode of a run said about the images of its predictions; of another evaluation: None."""
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


def read_episodes(run: StoredRun) -> dict[str, NDArray[np.float64]] | None:
    """The metrics of each episode of a few-shot run, name -> [episodes]; None where there is no file."""
    path = TaskFiles.beside(run.path).per_episode
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


def _table(run: StoredRun) -> tuple[list[list[str]], dict[str, int]]:
    """The rows of a run's file of predictions, and the place of each column.

    Results of other tools say only how many images there were, and not even that of few-shot files.
    """
    path = TaskFiles.beside(run.path).detailed
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        text = read_bytes(path).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        column = {name: k for k, name in enumerate(next(reader, []))}
        rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise HistobenchError(f"cannot read the predictions {path}: {why}") from error
    known = run.info.get(PREDICTIONS) or {}
    expected = known.get("rows", None if run.task == FEW_SHOT else run.num_samples)
    other = f"{len(rows)} rows instead of {expected}" if expected not in (None, len(rows)) else ""
    if other or ("sha256" in known and digest_of(text) != known["sha256"]):
        raise HistobenchError(
            f"{path} is not the file that {run.path.name} was computed from ({other or 'checksum'}): it was "
            "cut short or changed; restore it, or run the task again"
        )
    return rows, column


def _whole_numbers(texts: Sequence[str]) -> list[int]:
    try:
        return list(map(int, texts))
    except ValueError:
        return [int(float(text)) for text in texts]  # other tools write 1.0


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

    def __repr__(self) -> str:
        encoder, dataset = self.identity.encoder, self.identity.dataset
        return f"StoredRun of {encoder} on {dataset}: {self.task} {self.setting}".rstrip()

    @property
    def undefined_metrics(self) -> dict[str, str]:
        reasons = self.info.get("undefined_metrics")
        return reasons if isinstance(reasons, dict) else {}

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to keep in mind when reading the numbers, as far as the file says."""
        said = self.info.get("caveats")
        return tuple(map(str, said)) if isinstance(said, list) else ()

    @property
    def target(self) -> str:
        said = self.info.get(TARGET)
        return said if isinstance(said, str) and said in TARGETS else CLASS

    predictions = cached_property(read_predictions)
    target_predictions = cached_property(read_target_predictions)
    episodes = cached_property(read_episodes_of)
    per_episode = cached_property(read_episodes)
