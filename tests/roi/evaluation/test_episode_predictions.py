"""What episodes and runs predicted is kept, and gives back what was reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from builders import feature_set
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, run_intervals
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Options
from histobench.roi.results.episode_predictions import EpisodePredictions, log_odds_of
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun


def features(seed: int, n: int, *, classes: int = 4) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 10, generator=torch.Generator().manual_seed(99))
    rows = centres[labels] + 1.5 * torch.randn(n, 10, generator=generator)
    groups = [f"p{k % 9}" for k in range(n)]
    meta = {"classes": list("abcd")[:classes], "encoder": "e", "dataset": "d"}
    return feature_set(rows, labels, names=f"{seed}-{{}}.png", groups=groups, **meta)


def asked(folder: Path) -> EvaluationRequest:
    options = Options(n_iter=12, n_way=(2,), n_shot=(1, 4), keep_probabilities=True)
    tasks, parts = ("Few-shot", "Label-efficiency"), (features(0, 80), features(1, 60))
    return EvaluationRequest(tasks, *parts, folder, device="cpu", options=options)


@pytest.fixture
def request_(tmp_path: Path) -> EvaluationRequest:
    return asked(tmp_path / "r")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredRun]:
    """What a whole evaluation stores."""
    folder = tmp_path_factory.mktemp("evaluated")
    evaluate(asked(folder))
    return stored(folder)


def stored(folder: Path) -> dict[str, StoredRun]:
    return {f"{run.task} {run.setting}": run for run in load_runs(folder)}


def reported_episodes(run: StoredRun) -> list[dict[str, float]]:
    path = run.path.with_name(run.path.name.replace("_complete_results", "_per_episode_metrics"))
    episodes: list[dict[str, float]] = json.loads(path.read_text())["episodes"]
    return episodes


@pytest.mark.slow
def test_scikit_learn_finds_every_episodes_metrics_in_what_was_kept(evaluated: dict[str, StoredRun]) -> None:
    assert len(evaluated) == 4 + 6
    for name, run in evaluated.items():
        kept = run.episodes
        assert kept is not None, name
        reported = reported_episodes(run)
        assert len(kept) == len(reported)
        for e, expected in enumerate(reported):
            labels, votes = (values[0] for values in kept.local(slice(e, e + 1)))
            took = labels >= 0
            y, said = labels[took], votes[took]
            way = kept.classes.shape[1]
            assert sk.accuracy_score(y, said) == pytest.approx(expected["accuracy"])
            assert sk.balanced_accuracy_score(y, said) == pytest.approx(expected["balanced_accuracy"])
            assert sk.f1_score(y, said, average="macro") == pytest.approx(expected["f1_score"])
            kappa = sk.cohen_kappa_score(y, said, weights="quadratic", labels=range(way))
            assert kappa == pytest.approx(expected["quadratic_kappa"])
            p = kept.probabilities(e)[took]
            area = sk.roc_auc_score(y, p[:, 1]) if way == 2 else np.mean(
                [sk.roc_auc_score(y == k, p[:, k]) for k in range(way)]
            )  # fmt: skip
            assert area == pytest.approx(expected["auroc"], abs=5e-3)  # a tie more among 225 pairs


@pytest.mark.slow
def test_one_small_file_per_task_and_none_for_tasks_without_episodes(request_: EvaluationRequest) -> None:
    evaluate(replace(request_, tasks=("Few-shot", "Proto"), options=Options(n_iter=100, n_way=(2, 3))))
    files = [
        path.relative_to(request_.results_dir).as_posix() for path in request_.results_dir.rglob("*.npz")
    ]
    assert files == ["Few-shot/Few-shot_episode_predictions.npz"]
    votes = next(request_.results_dir.rglob("*.npz")).stat().st_size
    assert votes < 0.5 * 100 * 60 * len(stored(request_.results_dir))  # under half a byte for each vote


def test_half_precision_keeps_the_order_of_sure_and_of_undecided_scores() -> None:
    p = np.array([[0.5, 0.5], [0.5001, 0.4999], [0.9999, 0.0001], [0.99999, 0.00001], [1.0, 0.0]])
    kept = EpisodePredictions.of_runs([p], np.zeros(5, dtype=np.int64)).probabilities(0)
    assert (np.diff(kept[:, 0]) > 0).all()
    np.testing.assert_allclose(kept, p, atol=2e-4)
    nine = np.full((3, 9), 1 / 9)
    nine[1, 0] += 1e-4
    assert len(np.unique(log_odds_of(nine)[:, 0])) == 2


@pytest.mark.slow
def test_predictions_of_another_evaluation_are_not_taken_for_these(
    request_: EvaluationRequest, tmp_path: Path
) -> None:
    evaluate(replace(request_, tasks=("Few-shot",)))
    evaluate(replace(request_, tasks=("Few-shot",), seed=5, results_dir=tmp_path / "other"))
    theirs = next((tmp_path / "other").rglob("*.npz")).read_bytes()
    next(request_.results_dir.rglob("*.npz")).write_bytes(theirs)
    (run, *_) = load_runs(request_.results_dir)
    assert run.episodes is None
    assert run_intervals(run, BootstrapSettings(n_bootstrap=50))["resampled"] == "episodes"


@pytest.mark.slow
def test_a_damaged_file_says_what_to_do(request_: EvaluationRequest) -> None:
    evaluate(replace(request_, tasks=("Few-shot",)))
    next(request_.results_dir.rglob("*.npz")).write_bytes(b"PK no")
    with pytest.raises(HistobenchError, match="delete it and run the task again"):
        _ = load_runs(request_.results_dir)[0].episodes


@pytest.mark.slow
def test_an_interrupted_task_leaves_no_predictions_of_an_earlier_one(
    request_: EvaluationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_, tasks=("Few-shot",))
    evaluate(request)
    calls = []

    def stop(*_: object, **__: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("histobench.roi.evaluation.evaluation_run.write_episodes", stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate(request)
    assert not list(request.results_dir.rglob("*.npz"))
    assert not list(request.results_dir.rglob("*.tmp"))


@pytest.mark.slow
def test_intervals_are_over_episodes_and_patients_and_runs_are_called_runs(
    evaluated: dict[str, StoredRun],
) -> None:
    runs = evaluated
    few = run_intervals(runs["Few-shot 4way_4shot"], BootstrapSettings(n_bootstrap=50))
    assert few["resampled"] == "episodes and groups (patients or slides)"
    for metric in ("accuracy", "auroc", "mcc", "log_loss"):
        entry = few["metrics"][metric]
        assert entry["value"] == runs["Few-shot 4way_4shot"].metrics[metric]
        assert entry["ci_lower"] < entry["value"] < entry["ci_upper"]
        assert "over" not in entry
    assert few["metrics"]["ece"]["ci_lower"] is None
    share = run_intervals(runs["Label-efficiency 10pct"], BootstrapSettings(n_bootstrap=50))
    assert share["resampled"] == "training runs and groups (patients or slides)"
    whole = run_intervals(runs["Label-efficiency 100pct"], BootstrapSettings(n_bootstrap=50))
    assert whole["resampled"] == "groups (patients or slides)"
    assert whole["metrics"]["accuracy"]["ci_lower"] < whole["metrics"]["accuracy"]["value"]


@pytest.mark.slow
def test_without_probabilities_areas_say_that_they_are_over_episodes_alone(
    request_: EvaluationRequest,
) -> None:
    evaluate(
        replace(request_, tasks=("Few-shot",), options=replace(request_.options, keep_probabilities=False))
    )
    (run, *_) = load_runs(request_.results_dir)
    found = run_intervals(run, BootstrapSettings(n_bootstrap=50))["metrics"]
    assert found["auroc"]["over"] == "episodes"
    assert "over episodes alone" in found["auroc"]["note"]
    assert "over" not in found["balanced_accuracy"]
