"""A results folder with simulated predictions, written through the same functions as real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.classification import Score, evaluate
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions, episode_file
from histobench.roi.results.layout import RunIdentity
from histobench.roi.results.writer import write_episodes, write_task

Floats = NDArray[np.float64]
CLASSES = ("NORM", "STR", "TUM", "MUS", "MUC", "LYM", "DEB", "BACK", "ADI")
#: task -> (how sharp its probabilities are, how much it loses)
TASKS = {
    "Linear-Probe": (1.3, 0.0),
    "KNN": (0.9, 0.3),
    "Proto": (0.6, 0.5),
    "Zero-shot": (0.4, 1.4),
    "Retrieval": (0.8, 0.6),
    "Label-efficiency": (1.0, 0.4),
    "Few-shot": (0.7, 0.8),
}
#: of every few-shot setting
EPISODES = 40


@dataclass(frozen=True)
class SimulatedSet:
    """A test set: names, labels and patients; images of one patient are hard together."""

    name: str
    classes: tuple[str, ...]
    img_names: tuple[str, ...]
    labels: NDArray[np.int64]
    groups: tuple[str, ...] | None = None

    @classmethod
    def of_size(
        cls, name: str, n: int, *, classes: Sequence[str] = CLASSES, patients: int = 0
    ) -> SimulatedSet:
        """`n` images spread over the classes, of `patients` patients where that is not 0."""
        names = tuple(f"{name}-{k:05d}.png" for k in range(n))
        groups = tuple(f"patient-{k * patients // n:03d}" for k in range(n)) if patients else None
        return cls(name, tuple(classes), names, np.arange(n, dtype=np.int64) % len(classes), groups)


def simulated_predictions(data: SimulatedSet, *, skill: float, sharpness: float, seed: int) -> Predictions:
    """Probabilities whose errors are shared between encoders as they are in life."""
    n, c = len(data.labels), len(data.classes)
    shared = np.random.default_rng(sum(map(ord, data.name)))
    own = np.random.default_rng(seed)
    similar = shared.normal(size=(c, c))
    logits = skill * np.eye(c)[data.labels] + 0.6 * similar[data.labels]
    logits += 1.0 * shared.normal(size=(n, c)) + 0.6 * own.normal(size=(n, c))
    if data.groups is not None:
        codes = np.unique(data.groups, return_inverse=True)[1]
        logits += 0.5 * shared.normal(size=(codes.max() + 1, c))[codes]
    logits *= sharpness * 1.6
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    return Predictions(
        probabilities=probabilities,
        labels=data.labels,
        predicted=np.argmax(probabilities, axis=1),
        classes=data.classes,
        img_names=data.img_names,
        groups=data.groups,
    )


def write_run(
    folder: Path,
    data: SimulatedSet,
    task: str,
    *,
    encoder: str,
    skill: float,
    setting: str = "",
    seed: int = 0,
    preset: str = "uni",
    episodes: int = 0,
    keep_votes: bool = False,
    info: dict[str, object] | None = None,
) -> None:
    """One task of one encoder, with `episodes` few-shot episodes where that is not 0.

    `keep_votes` also writes what every episode said about every image, as `histobench evaluate` does.
    """
    sharpness, loss = TASKS.get(task, (1.0, 0.2))
    number = sum(map(ord, encoder + task + setting + data.name)) + seed
    predictions = simulated_predictions(data, skill=skill - loss, sharpness=sharpness, seed=number)
    result = evaluate(
        predictions.probabilities, predictions.labels, classes=data.classes, predicted=predictions.predicted
    )
    shots = _shots(setting)
    kept = _votes(predictions, episodes, shots, seed=number) if keep_votes and episodes else None
    columns = (
        _drawn_metrics(result.values, episodes, shots, seed=number) if kept is None else _metrics_of(kept)
    )
    scores = dict(result.scores)
    if kept is not None:
        scores |= {name: Score(float(values.mean())) for name, values in columns.items()}
    files = write_task(
        folder,
        task,
        predictions,
        identity=RunIdentity(data.name, encoder, preset, seed, fingerprint=f"{number:016x}"),
        scores=scores,
        per_class=result.per_class,
        confusion_matrix=result.confusion_matrix,
        setting=setting,
        info={
            "num_train": 10 * len(data.labels),
            "train_features": f"features/{data.name}_{encoder}_train.pt",
            "test_features": f"features/{data.name}_{encoder}_test.pt",
            "device": "cpu",
            **(info or {}),
        },
    )
    if episodes:
        write_episodes(files, columns, info={"setting": setting})
    if kept is not None:
        with episode_file(files.episode_predictions) as file:
            file.add(setting, kept)


def _shots(setting: str) -> int:
    written = setting.partition("_")[2].removesuffix("shot")
    return int(written) if written.isdigit() else 1


def _drawn_metrics(
    values: Mapping[str, float | None], episodes: int, shots: int, *, seed: int
) -> dict[str, Floats]:
    """Metrics of each episode that vary about those of the predictions."""
    generator = np.random.default_rng(seed)
    return {
        name: np.clip(value - 0.03 / shots**0.5 + generator.normal(0, 0.08 / shots**0.5, episodes), 0, 1)
        for name, value in values.items()
        if name in ("accuracy", "balanced_accuracy", "f1_score", "auroc") and value is not None
    }


def _votes(predictions: Predictions, episodes: int, shots: int, *, seed: int) -> EpisodePredictions:
    """Episodes whose scores vary about those of the predictions, the less the more shots they have."""
    scores = np.log(predictions.probabilities)[:, None]
    n, _, c = scores.shape
    noise = np.random.default_rng(seed).normal(0, 1 / shots**0.5, (n, episodes, c))
    classes = np.tile(np.arange(c), (episodes, 1))
    return EpisodePredictions((scores + noise).argmax(2), predictions.labels, classes)


def _metrics_of(kept: EpisodePredictions) -> dict[str, Floats]:
    c = kept.classes.shape[1]
    cells = np.arange(len(kept)) * c * c + kept.labels[:, None] * c + kept.votes
    tables = np.bincount(cells.ravel(), minlength=len(kept) * c * c).reshape(-1, c, c)
    return label_metrics_of(tables.astype(np.float64))


def write_features(out: Path, data: SimulatedSet, *, encoder: str, skill: float, dim: int = 32) -> Path:
    """Test embeddings that lie in clouds, one per class, the further apart the better the encoder."""
    import torch

    from histobench.roi.features.feature_file import FeatureSet, save

    generator = np.random.default_rng(sum(map(ord, encoder + data.name)))
    centres = generator.normal(size=(len(data.classes), dim))
    rows = skill * 0.7 * centres[data.labels] + generator.normal(size=(len(data.labels), dim))
    features = FeatureSet(
        embeddings=torch.from_numpy(rows.astype(np.float32)),
        labels=torch.from_numpy(data.labels),
        img_names=data.img_names,
        groups=data.groups,
        metadata={"dataset": data.name, "encoder": encoder, "split": "test"},
    )
    return save(features, out / "features" / f"{data.name}_{encoder}_test.pt")


def write_folder(
    out: Path,
    *,
    encoders: dict[str, float],
    sets: Sequence[SimulatedSet],
    tasks: Sequence[str] = tuple(TASKS),
    shots: Sequence[int] = (4,),
    shares: Sequence[int] = (10,),
    keep_votes: bool = False,
    info: dict[str, object] | None = None,
) -> Path:
    """All `tasks` of all `encoders` (name -> skill) on all `sets`."""
    for data in sets:
        c = len(data.classes)
        for encoder, skill in encoders.items():
            folder = out / data.name / encoder.replace("/", "_")
            for task in tasks:
                if task == "Few-shot":
                    for shot in shots:
                        gain = 0.35 * np.log2(shot) - 0.8
                        write_run(
                            folder, data, task, encoder=encoder, skill=skill + gain,
                            setting=f"{c}way_{shot}shot", episodes=EPISODES, keep_votes=keep_votes, info=info,
                        )  # fmt: skip
                elif task == "Label-efficiency":
                    for share in shares:
                        gain = 0.4 * np.log10(share) - 0.7
                        write_run(
                            folder, data, task, encoder=encoder, skill=skill + gain,
                            setting=f"{share}pct", info=info,
                        )  # fmt: skip
                else:
                    write_run(folder, data, task, encoder=encoder, skill=skill, info=info)
    return out
