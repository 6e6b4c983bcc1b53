"""Label efficiency fits the probe of the preset; retrieval's calibration is about the label it votes for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import feature_set
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Options
from histobench.roi.protocols.knn import retrieval
from histobench.roi.results.reader import load_runs
from histobench.roi.results.writer import mean_and_std

pytestmark = pytest.mark.slow


def features(n: int, seed: int) -> FeatureSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    rows = np.random.default_rng(7).normal(size=(3, 12))[labels] + 1.5 * rng.normal(size=(n, 12))
    meta = {"dataset": "set", "encoder": "e", "classes": ["a", "b", "c"]}
    return feature_set(rows, labels, names=f"{seed}-{{}}", **meta)


def probabilities(folder: Path, task: str, setting: str = "") -> np.ndarray:
    run = next(run for run in load_runs(folder) if (run.task, run.setting) == (task, setting))
    return run.predictions.probabilities


@pytest.mark.parametrize(
    ("preset", "use_sklearn"),
    [
        ("uni", False),
        ("uni", True),
        *(pytest.param(name, False, marks=pytest.mark.nightly) for name in ("sklearn", "thunder")),
    ],
)
def test_all_labels_give_the_linear_probe_of_the_same_preset(
    preset: str, use_sklearn: bool, tmp_path: Path
) -> None:
    tasks, options = ("Linear-Probe", "Label-efficiency"), Options(use_sklearn=use_sklearn)
    request = EvaluationRequest(tasks, features(90, 0), features(60, 1), tmp_path, options=options)
    outcome = evaluate(replace(request, preset=preset, device="cpu"))
    assert not outcome.failed
    assert not outcome.skipped
    whole = probabilities(tmp_path, "Label-efficiency", "100pct")
    np.testing.assert_array_equal(whole, probabilities(tmp_path, "Linear-Probe"))


def test_retrieval_is_as_calibrated_as_the_label_that_most_neighbours_have(tmp_path: Path) -> None:
    train, test = features(90, 0), features(60, 1)
    evaluate(EvaluationRequest(("Retrieval",), train, test, tmp_path, device="cpu"))
    stored = next(iter(load_runs(tmp_path)))
    outcome, scores = retrieval(train.embeddings, train.labels, test.embeddings, test.labels, n_classes=3)
    assert {name: stored.metrics[name] for name in scores} == pytest.approx(scores)
    votes, truth = outcome.probabilities, test.labels.numpy()
    confidence, winner = votes.max(1), votes.argmax(1)
    tied = votes[np.arange(60), outcome.predicted] == confidence  # the first hit, where it is among the most
    winner[tied] = outcome.predicted[tied]
    assert (winner != outcome.predicted).any()
    ece = sum(
        abs((winner == truth)[confidence == level].mean() - level) * (confidence == level).mean()
        for level in np.unique(confidence)
    )
    assert len({int(15 * level + 1e-9) for level in np.unique(confidence)}) == len(np.unique(confidence))
    assert stored.metrics["ece"] == pytest.approx(ece)


def test_spread_over_episodes_is_that_of_the_population() -> None:
    values = np.array([0.5, 0.7, np.nan, 0.9])
    assert mean_and_std(values)["std"] == pytest.approx(np.std([0.5, 0.7, 0.9]))
    assert mean_and_std(np.array([0.4]))["std"] == 0.0
