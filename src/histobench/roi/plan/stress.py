"""The stress test of encoders on a dataset: test images under every perturbation, from one decode each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.devices import resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.core.progress import Progress
from histobench.core.text import check_plain_name
from histobench.core.version import __version__
from histobench.roi.comparison.grids import Grid
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.own_name import label_of
from histobench.roi.plan.planner import encoder_folder
from histobench.roi.robustness.leaving_out import LEAST_GROUPS, METHOD, Measure
from histobench.roi.robustness.perturbations import (
    STRESS,
    THUNDER,
    Encode,
    Pixels,
    Stressed,
    stress_measures,
    stressed_features,
)
from histobench.roi.task_catalogue import ROBUSTNESS

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.features.feature_file import FeatureSet

CHANGES = (*STRESS, *THUNDER)
FILE = "stress.json"


@dataclass(frozen=True)
class StressReport:
    """What one encoder makes of changed images, and where it is written."""

    dataset: str
    encoder: str
    images: int
    groups: int
    clean_accuracy: float
    stressed: tuple[Stressed, ...]
    notes: tuple[str, ...]
    path: Path


def run_stress(
    dataset: RoiDataset,
    encoders: Sequence[str],
    results: Path,
    *,
    images: int,
    seed: int,
    device: str | None,
    weights: str | None,
    progress: Progress,
) -> list[StressReport]:
    """Stress every encoder on up to `images` test images; training features come from the usual cache.

    A linear probe (preset `uni`) is trained once on unchanged training images. Features are computed in
    float32 without the fast paths of the extraction, so that no other difference is between two features.
    """
    from histobench.roi.encoders.registry import EncoderRecipe, create_encoder
    from histobench.roi.features.feature_extraction import extract
    from histobench.roi.features.feature_file import load

    for split in ("train", "test"):
        if not dataset.splits.get(split):
            raise HistobenchError(f"{dataset.name} has no {split} images; the stress test needs both")
    device = resolve_device(device)
    training = RoiDataset(dataset.name, dataset.classes, {"train": dataset.splits["train"]})
    recipes = [EncoderRecipe(name, None, weights, False) for name in encoders]
    exact: dict[str, Any] = {"device": device, "precision": "fp32", "progress": progress}
    files = extract(training, recipes, results / "features", **exact)
    chosen = _chosen(dataset.splits["test"], images, seed)
    reports = []
    for name in encoders:
        train = load(next(file.path for file in files if file.asked == name))
        encoder = create_encoder(name, weights=weights).to(device).float().eval()
        progress.begin(f"{dataset.name} x {label_of(name)}, {len(CHANGES)} changes of each", len(chosen))
        try:
            decoded = _decoded(chosen, progress)
            features = stressed_features(decoded, CHANGES, _encode(encoder, device), seed=seed)
        finally:
            progress.end()
        predicted, notes = _predicted(train, features, len(dataset.classes), device)
        reports.append(_report(dataset, name, chosen, features, predicted, notes, results, seed))
    return reports


def stress_grid(report: StressReport) -> Grid:
    """One row per perturbation, the greatest loss of accuracy first; it fits 80 characters."""
    rows = tuple(
        (item.name, _cell(item.cosine), _cell(item.flip_rate, 0, 100), _cell(item.accuracy_drop, 0, 100))
        for item in sorted(report.stressed, key=lambda item: (-(item.accuracy_drop.value or 0.0), item.name))
    )
    enough = report.groups >= LEAST_GROUPS
    intervals = f"95 % intervals: {METHOD}" if enough else f"no intervals: {LEAST_GROUPS} groups are needed"
    notes = (
        f"{report.images} test images of {report.groups} groups; accuracy of "
        f"unchanged images {report.clean_accuracy:.3f}; {intervals}; paired per image",
        *(tuple(_reasons(report)) if enough else ()),
        *report.notes,
    )
    title = f"{report.encoder} on {report.dataset}: changed images"
    return Grid(title, ("change", "cosine", "other class %", "accuracy lost %"), rows, notes)


def _reasons(report: StressReport) -> Iterator[str]:
    of_reason: dict[str, list[str]] = {}
    words = {"cosine": "cosine", "flip_rate": "other class", "accuracy_drop": "accuracy lost"}
    for item in report.stressed:
        for name, what in words.items():
            if (reason := getattr(item, name).reason) is not None:
                reason = reason.removeprefix("no interval: ")
                of_reason.setdefault(reason, []).append(f"{what} of {item.name}")
    for reason, names in of_reason.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"no interval for {', '.join(names[:3])}{more}: {reason}"


def _chosen(test: Sequence[RoiImage], count: int, seed: int) -> list[RoiImage]:
    if len(test) <= count:
        return list(test)
    return [test[row] for row in sorted(np.random.default_rng(seed).choice(len(test), count, replace=False))]


def _decoded(images: Sequence[RoiImage], progress: Progress) -> Iterator[tuple[str, Pixels]]:
    from histobench.roi.data.image import open_rgb

    for image in images:
        yield image.name, np.asarray(open_rgb(image.path))
        progress.advance(1)


def _encode(encoder: BasePatchEncoder, device: str) -> Encode:
    import torch
    from PIL import Image

    def encode(images: Sequence[Pixels]) -> NDArray[np.float32]:
        batch = torch.stack([encoder.eval_transforms(Image.fromarray(pixels)) for pixels in images])
        with torch.inference_mode():
            return np.asarray(encoder(batch.to(device)).float().cpu().numpy())

    return encode


def _predicted(
    train: FeatureSet, features: NDArray[np.float32], n_classes: int, device: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    import torch

    from histobench.roi.protocols.linear_probe import linear_probe

    flat = torch.from_numpy(features).flatten(0, 1)
    outcome = linear_probe(train.embeddings, train.labels, flat, n_classes=n_classes, device=device)
    return outcome.predicted.reshape(features.shape[:2]), tuple(outcome.info.get("warnings", ()))


def _report(
    dataset: RoiDataset,
    encoder: str,
    images: Sequence[RoiImage],
    features: NDArray[np.float32],
    predicted: NDArray[np.int64],
    notes: tuple[str, ...],
    results: Path,
    seed: int,
) -> StressReport:
    labels = np.array([image.label for image in images])
    names = [f"g{image.group}" if image.group else f"i{row}" for row, image in enumerate(images)]
    _, groups = np.unique(np.array(names, dtype=object), return_inverse=True)
    stressed = stress_measures(features, CHANGES, labels, groups, predicted)
    folder = encoder_folder(results / check_plain_name(dataset.name, what="dataset"), encoder)
    counts = len(images), len(np.unique(groups)), float((predicted[0] == labels).mean())
    path = folder / ROBUSTNESS / FILE
    report = StressReport(dataset.name, label_of(encoder), *counts, tuple(stressed), notes, path)
    content = {
        "dataset": report.dataset,
        "encoder": report.encoder,
        "num_samples": report.images,
        "num_groups": report.groups,
        "clean_accuracy": report.clean_accuracy,
        "changes": {
            item.name: {
                "family": item.family,
                "strength": item.strength,
                "cosine": _measure(item.cosine),
                "flip_rate": _measure(item.flip_rate),
                "accuracy_drop": _measure(item.accuracy_drop),
            }
            for item in report.stressed
        },
        "notes": list(report.notes),
        "interval_method": METHOD,
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
    }
    write_json(path, content)
    return report


def _measure(found: Measure) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "reason": found.reason}


def _cell(found: Measure, digits: int = 3, factor: float = 1.0) -> str:
    value, low, high = (
        None if number is None else f"{round(factor * number, digits) + 0.0:.{digits}f}"
        for number in (found.value, found.low, found.high)
    )
    return f"{value}" if low is None else f"{value} [{low}, {high}]"
