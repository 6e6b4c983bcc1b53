"""What a user's own program looks like to a type checker; tests/api/test_public_names.py runs mypy on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import histobench as hb


def benchmark(folder: Path) -> float:
    """From images to the best encoder's accuracy."""
    data: hb.Dataset = hb.load_dataset(folder, split=(0.7, 0.1, 0.2), group_regex=r"^(patient\d+)_")
    bench: hb.Benchmark = hb.run(
        data, ["uni_v1", "resnet50"], tasks=["KNN"], n_neighbors=5, precision="bf16", splits="5x2"
    )
    table: hb.ComparisonTable = hb.compare(bench, metric="auroc")
    return float(table.ranked()["value"].iloc[0])


def features_of(folder: Path) -> NDArray[np.float32]:
    """Features as arrays."""
    sets: hb.FeatureSplits = hb.extract(folder, hb.create_encoder("tiny-vl"), batch_size="auto")
    train: hb.Features = sets.train
    names: list[str] = [spec.name for spec in hb.list_encoders(open=True)[:2]]
    assert names
    measured: hb.RobustnessTables = hb.robustness([sets], columns="scanner")
    assert len(measured.to_frame())
    hb.evaluate(train, sets.test, tasks="Few-shot", n_shot=[1, 2], choose_by="image")
    return train.X


def agents(folder: Path) -> hb.mint.AgentRuns:
    """Agents, and agents that ask an encoder."""
    study: hb.consult.Study = hb.consult.prepare(folder, ["uni_v1", "random-vit"], cases=50)
    played: hb.consult.ConsultRuns = hb.consult.run(study, "policy:reader", arms=["none", "strong"])
    assert len(played.compare("policy-reader", "policy-oracle"))
    return hb.mint.run("openai:gpt-4o-mini", ["gsm8k", "math"], k=range(1, 6), calls="native", max_cost=5)
