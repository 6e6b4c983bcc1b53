"""Writes one task's predictions and metrics as the documented files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.files import atomic_path, write_json, write_text
from histobench.core.text import csv_text
from histobench.core.version import __version__
from histobench.roi.metrics.classification import Score
from histobench.roi.predictions import Predictions, TargetPredictions, TileAttention
from histobench.roi.results.layout import RunIdentity, TaskFiles

#: Key of `additional_info` under which the rows and the checksum of the detailed CSV stand.
PREDICTIONS = "predictions_file"
#: Key of `additional_info` with the names of the site columns of the detailed CSV.
SITES = "site_columns"
#: Key of `additional_info` with the kind of a target that is not a class.
TARGET = "target"
#: How the columns of such a target begin in the detailed CSV: its truth, its predictions, Uno's weights.
TRUE, PREDICTED, WEIGHT = "true:", "predicted:", "weight"


def write_task(
    results_dir: Path,
    task: str,
    predictions: Predictions | TargetPredictions,
    *,
    identity: RunIdentity,
    scores: Mapping[str, Score],
    per_class: Mapping[str, Mapping[str, Score]],
    confusion_matrix: NDArray[Any] | list[list[int]],
    setting: str = "",
    info: Mapping[str, Any] | None = None,
) -> TaskFiles:
    """Write the detailed CSV and, last, the complete JSON of a task: a task that has one is whole."""
    files = TaskFiles.of(results_dir, task, setting)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    missing = {name: score.reason for name, score in scores.items() if score.value is None}
    for name, values in per_class.items():
        missing |= {f"{name}/{key}": score.reason for key, score in values.items() if score.value is None}
    kind = {TARGET: predictions.kind} if isinstance(predictions, TargetPredictions) else {}
    text = _csv_of(predictions)
    write_text(files.detailed, text)
    write_json(
        files.complete,
        {
            "task_name": task,
            "metrics": {
                **{name: score.value for name, score in scores.items()},
                "per_class": {
                    name: {key: score.value for key, score in values.items()}
                    for name, values in per_class.items()
                },
            },
            "confusion_matrix": np.asarray(confusion_matrix).tolist(),
            "num_samples": len(predictions),
            "num_classes": len(predictions.classes),
            "additional_info": {
                "dataset": identity.dataset,
                "encoder": identity.encoder,
                "preset": identity.preset,
                "setting": setting,
                "seed": identity.seed,
                "fingerprint": identity.fingerprint,
                "description": identity.description,
                "size": identity.size,
                "classes": list(predictions.classes),
                "undefined_metrics": missing,
                "date": date,
                "version": __version__,
                **kind,
                **({SITES: list(predictions.sites)} if predictions.sites else {}),
                **predictions.info,
                **(info or {}),
                PREDICTIONS: {"rows": len(predictions), "sha256": digest_of(text)},
            },
        },
    )
    return files


def digest_of(text: str) -> str:
    """The checksum of the text of a predictions file, whichever system's line ends it has."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode("utf-8", "surrogatepass")).hexdigest()


def write_episodes(
    files: TaskFiles, per_episode: Mapping[str, NDArray[np.float64]], *, info: Mapping[str, Any]
) -> None:
    columns = {name: _numbers(values) for name, values in per_episode.items()}
    count = len(next(iter(columns.values())))
    episodes = [
        {"episode": episode, **{name: values[episode] for name, values in columns.items()}}
        for episode in range(count)
    ]
    metrics = {name: mean_and_std(np.asarray(values)) for name, values in per_episode.items()}
    write_json(files.per_episode, {**info, "num_episodes": count, "episodes": episodes})
    write_json(files.few_shot, {**info, "num_episodes": count, "metrics": metrics})


def write_attention(files: TaskFiles, attention: TileAttention) -> None:
    """Write the attention on every test tile, in the order of the features, and the tiles with the most."""
    content: dict[str, Any] = {
        "attention": attention.weights.astype(np.float32),
        "patient": attention.patient_of.astype(np.int32),
        "patients": np.array(attention.patients),
    }
    if attention.coords is not None and attention.slide_of is not None:
        content["coords"] = attention.coords.astype(np.float32)
        content |= {"slide": attention.slide_of.astype(np.int32), "slides": np.array(attention.slides)}
    with atomic_path(files.attention) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, **content)
    rows = ((*row[:3], f"{row[3]:.6g}") for row in attention.top_tiles())
    write_text(files.top_tiles, csv_text(["patient", "rank", "img_name", "attention"], rows))


def write_examples(files: TaskFiles, sheet: NDArray[np.uint8]) -> None:
    from PIL import Image

    with atomic_path(files.examples) as temporary, temporary.open("wb") as handle:
        Image.fromarray(sheet).save(handle, format="PNG")


def mean_and_std(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Mean, standard deviation (of the population, as in HistoROIBench), least and greatest defined value."""
    defined = values[np.isfinite(values)]
    names = ("mean", "std", "min", "max")
    return {name: float(getattr(defined, name)()) if len(defined) else None for name in names}


def _csv_of(predictions: Predictions | TargetPredictions) -> str:
    columns: dict[str, Sequence[Any]] = {"img_name": predictions.img_names}
    groups = {} if predictions.groups is None else {"group": predictions.groups}
    if isinstance(predictions, TargetPredictions):
        for start, names, values in (
            (TRUE, predictions.columns, predictions.truth),
            (PREDICTED, predictions.predicted_columns, predictions.predicted),
        ):
            columns |= {f"{start}{name}": values[:, place].tolist() for place, name in enumerate(names)}
        if predictions.weights is not None:
            columns[WEIGHT] = predictions.weights.tolist()
        columns |= groups
    else:
        columns["true_label"] = predictions.labels.tolist()
        columns["predicted_label"] = predictions.predicted.tolist()
        columns["probabilities"] = _json_rows(predictions.probabilities)
        columns |= groups | predictions.sites
        if predictions.episodes is not None:
            columns["num_episodes"] = predictions.episodes.tolist()
    return csv_text(columns, zip(*columns.values(), strict=True))


def _json_rows(probabilities: NDArray[np.float64]) -> list[str]:
    """JSON lists; null for a class that the probabilities do not cover, empty for an image without any."""
    # One call for all rows is many times as fast as one for each.
    lists = json.dumps(_numbers(probabilities))[2:-2].split("], [")
    rows = [f"[{each}]" for each in lists][: len(probabilities)]
    for place in np.flatnonzero(np.isnan(probabilities).all(axis=1)):
        rows[place] = ""
    return rows


def _numbers(values: NDArray[np.float64]) -> list[Any]:
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
