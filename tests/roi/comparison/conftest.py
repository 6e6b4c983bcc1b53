"""Results folders with predictions whose quality is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from histobench.roi.metrics.classification import evaluate
from histobench.roi.predictions import Predictions
from histobench.roi.results.layout import RunIdentity
from histobench.roi.results.writer import write_episodes, write_task

CLASSES = ("TUM", "STR", "LYM")
Write = Callable[..., Path]


def simulated_predictions(
    *,
    signal: float,
    n: int = 150,
    seed: int = 0,
    test_set: int = 0,
    groups: bool = False,
    classes: tuple[str, ...] = CLASSES,
) -> Predictions:
    """Probabilities of an encoder of a given quality; test images are those of `test_set`."""
    images, noise = np.random.default_rng(test_set), np.random.default_rng(1000 + seed)
    labels = images.permutation(np.arange(n) % len(classes))
    shared = images.normal(size=(n, len(classes)))
    logits = shared + noise.normal(size=(n, len(classes)))
    logits[np.arange(n), labels] += signal
    exponent = np.exp(logits)
    probabilities = exponent / exponent.sum(axis=1, keepdims=True)
    return Predictions(
        probabilities=probabilities,
        labels=labels.astype(np.int64),
        predicted=probabilities.argmax(axis=1),
        classes=classes,
        img_names=tuple(f"tile_{test_set}_{k:04d}.png" for k in range(n)),
        groups=tuple(f"patient {k // 5}" for k in range(n)) if groups else None,
    )


def write_to(
    root: Path,
    encoder: str,
    signal: float = 1.5,
    *,
    dataset: str = "Colon",
    task: str = "Linear-Probe",
    setting: str = "",
    preset: str = "uni",
    seed: int | None = None,
    predictions: Predictions | None = None,
    folder: str = "",
    episodes: int = 0,
    **simulation: object,
) -> Path:
    """Write one run as `histobench evaluate` does and return the results folder."""
    if predictions is None:
        code = sum(map(ord, encoder)) if seed is None else seed
        predictions = simulated_predictions(signal=signal, seed=code, **simulation)  # type: ignore[arg-type]
    scores = evaluate(
        predictions.probabilities,
        predictions.labels,
        classes=predictions.classes,
        predicted=predictions.predicted,
    )
    results = root / "results" / (folder or f"{dataset}_{encoder}")
    files = write_task(
        results,
        task,
        predictions,
        identity=RunIdentity(dataset, encoder, preset, seed or 0),
        scores=scores.scores,
        per_class=scores.per_class,
        confusion_matrix=scores.confusion_matrix,
        setting=setting,
    )
    if episodes:
        generator = np.random.default_rng(3)
        write_episodes(
            files,
            {
                "accuracy": generator.normal(0.7, 0.05, episodes),
                "auroc": np.append(generator.normal(0.8, 0.02, episodes - 1), np.nan),
                "mcc": np.full(episodes, np.nan),
            },
            info={"task_name": task},
        )
    return root / "results"


@pytest.fixture
def write_run(tmp_path: Path) -> Write:
    return partial(write_to, tmp_path)


@pytest.fixture
def simulate() -> Callable[..., Predictions]:
    """Makes predictions of known quality."""
    return simulated_predictions
