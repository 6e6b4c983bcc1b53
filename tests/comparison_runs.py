"""Results folders with predictions whose quality is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from histobench.roi.metrics.classification import evaluate
from histobench.roi.predictions import Predictions
from histobench.roi.results.layout import RunIdentity
from histobench.roi.results.robustness_files import write_robustness
from histobench.roi.results.writer import write_episodes, write_task
from histobench.roi.robustness.leaving_out import Measure, Range, measured, units_of
from histobench.roi.robustness.pack import Pack, RobustnessResult, Tissue

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


def write_robust(results: Path, encoder: str, column: str, measures: dict[str, np.ndarray]) -> None:
    """Write robustness by a column; each measure is the mean of its values, one for each group."""
    groups = np.repeat(np.arange(len(next(iter(measures.values())))), 4)
    tissue = Tissue(groups % 3 % 2, groups % 2, groups, CLASSES[:2], ("A", "B"))
    found: dict[str, Measure] = {}
    for name, each in measures.items():
        within: Range = "contrast" if name.startswith("croma") else "share"
        without = (each.sum() - each) / (len(each) - 1)
        found[name] = measured(float(each.mean()), without, units_of(groups), within=within)
    result = RobustnessResult(column, Pack(found), tissue, "of these images", 0.1, ())
    write_robustness(results / encoder, result, identity=RunIdentity("Colon", encoder))


def pages_of_runs(site: Path) -> list[dict[str, Any]]:
    """What the report's pages of the runs are drawn from."""
    texts = (path.read_text() for path in sorted((site.parent / "data" / "run").glob("*.js")))
    return [
        json.loads(f"[{text.removeprefix('histobench.receive(').rstrip().removesuffix(');')}]")[1]
        for text in texts
    ]
