"""`histobench bootstrap` and its script: files, skipping, groups, episodes, bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from comparison_runs import Write, simulated_predictions
from histobench.cli.main import main
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, run_intervals
from histobench.roi.comparison.stored_intervals import stored_default_intervals
from histobench.roi.metrics.metric_catalogue import METRICS
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import read_episodes
from histobench.statistics.resampling import draw_counts, sampling_design

SCRIPT = Path(__file__).resolve().parents[3] / "02-Bootstrap_Statistical_Analysis.py"


def content(results: Path, pattern: str = "*_bootstrap_ci.json") -> dict:
    (path,) = results.rglob(pattern)
    return json.loads(path.read_text())


@pytest.mark.slow
def test_intervals_are_those_of_a_loop_over_scikit_learn(write_run: Write) -> None:
    (run,) = load_runs(write_run("a"))
    found = run_intervals(run, BootstrapSettings(n_bootstrap=100, random_state=5))
    said, classes = run.predictions, found["per_class"]
    counts = draw_counts(sampling_design(150, strata=said.labels), 100, np.random.default_rng(5))
    drawn = [np.repeat(np.arange(150), row) for row in counts]
    whole = [balanced_accuracy_score(said.labels[rows], said.predicted[rows]) for rows in drawn]
    checked = [(found["metrics"]["balanced_accuracy"], whole)]
    for label, name in enumerate(said.classes):
        of_class = [f1_score(said.labels[r] == label, said.predicted[r] == label) for r in drawn]
        checked.append((classes[name]["f1_score"], of_class))
    for entry, slow in checked:
        assert [entry["ci_lower"], entry["ci_upper"]] == pytest.approx(np.percentile(slow, [2.5, 97.5]))
        assert entry["std"] == pytest.approx(np.std(slow, ddof=1))
    assert checked[0][0]["value"] == pytest.approx(run.metrics["balanced_accuracy"])
    assert set(classes["TUM"]) == {"precision", "recall", "f1_score", "auroc", "auprc"}


def test_every_metric_of_every_task_gets_an_interval_beside_its_files(write_run: Write) -> None:
    write_run("a", task="KNN")
    results = write_run("a", task="Linear-Probe")
    assert main(["bootstrap", str(results), "--n_bootstrap", "50"]) == 0
    folder = results / "Colon_a"
    for task in ("KNN", "Linear-Probe"):
        found = json.loads((folder / task / f"{task}_bootstrap_ci.json").read_text())
        assert set(found["metrics"]) == set(METRICS)
        assert found["resampling"] == "stratified"
        for entry in found["metrics"].values():
            assert entry["ci_lower"] <= entry["mean"] <= entry["ci_upper"]
    summary = json.loads((results / "bootstrap_ci_summary.json").read_text())
    assert [row["task_name"] for row in summary["runs"]] == ["KNN", "Linear-Probe"]
    assert summary["runs"][0]["file"] == "Colon_a/KNN/KNN_bootstrap_ci.json"
    assert summary["runs"][0]["metrics"]["accuracy"]["ci_lower"] is not None


def test_intervals_of_other_predictions_are_not_mistaken_for_these(write_run: Write) -> None:
    results = write_run("a", 2.0)
    main(["bootstrap", str(results), "--n_bootstrap", "40"])
    before = content(results)["metrics"]["accuracy"]["value"]
    write_run("a", 0.2)
    main(["bootstrap", str(results), "--n_bootstrap", "40"])
    assert content(results)["metrics"]["accuracy"]["value"] < before - 0.1


def test_groups_are_drawn_whole_and_the_file_says_so(write_run: Write) -> None:
    (run,) = load_runs(write_run("a", groups=True))
    found = run_intervals(run, BootstrapSettings(n_bootstrap=50))
    assert found["resampling"] == "cluster"
    assert found["resampled"] == "groups (patients or slides)"
    assert found["num_groups"] == 30
    kept = run.predictions
    rare = replace(kept, labels=np.where(np.array(kept.groups) == "patient 3", 2, kept.labels % 2))
    run.__dict__["predictions"] = rare  # a resample without its patient has no mean over the classes
    entries = run_intervals(run, BootstrapSettings(n_bootstrap=50))["metrics"]
    assert entries["balanced_accuracy"]["n_valid"] < 45 < entries["accuracy"]["n_valid"] == 50


def test_a_metric_without_a_value_stays_null_with_its_reason(write_run: Write) -> None:
    predictions = simulated_predictions(signal=1.0)
    keep = np.flatnonzero(predictions.labels != 2)
    absent = replace(
        predictions,
        labels=predictions.labels[keep],
        probabilities=predictions.probabilities[keep],
        predicted=predictions.predicted[keep],
        img_names=tuple(predictions.img_names[k] for k in keep),
    )
    (run,) = load_runs(write_run("a", predictions=absent))
    found = run_intervals(run, BootstrapSettings(n_bootstrap=50))
    assert found["metrics"]["auroc"]["value"] is None
    assert found["metrics"]["auroc"]["ci_lower"] is None
    assert found["metrics"]["auroc"]["reason"] == "class LYM absent from the test set"
    assert found["metrics"]["accuracy"]["ci_lower"] is not None
    json.dumps(found, allow_nan=False)


def test_few_shot_intervals_are_over_episodes_and_beside_them_over_images(write_run: Write) -> None:
    results = write_run("a", task="Few-shot", setting="3way_4shot", episodes=40)
    (run,) = load_runs(results)
    found = run_intervals(run, BootstrapSettings(n_bootstrap=2000))
    episodes = read_episodes(run)
    assert episodes is not None
    assert found["resampled"] == "episodes"
    assert found["num_episodes"] == 40
    entry = found["metrics"]["accuracy"]
    error = episodes["accuracy"].std(ddof=1) / np.sqrt(40)
    assert entry["value"] == pytest.approx(episodes["accuracy"].mean())
    assert entry["ci_lower"] == pytest.approx(entry["value"] - 1.96 * error, abs=0.25 * error)
    assert found["metrics"]["auroc"]["value"] == pytest.approx(np.nanmean(episodes["auroc"]))
    assert found["metrics"]["mcc"]["value"] is None
    over_images = found["averaged_predictions"]
    assert over_images["resampled"] == "images within classes"
    assert over_images["metrics"]["accuracy"]["value"] == pytest.approx(
        np.mean(run.predictions.predicted == run.predictions.labels)
    )


@pytest.mark.slow
def test_the_script_runs_as_a_user_runs_it(write_run: Write) -> None:
    results = write_run("a")
    command = [sys.executable, str(SCRIPT), "--results_dir", str(results), "--n_bootstrap", "50"]
    done = subprocess.run([*command, "--random_state", "7"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert content(results)["random_state"] == 7
    assert (results / "bootstrap_ci_summary.json").exists()


def test_default_intervals_made_by_older_rules_are_recognised_and_made_anew(write_run: Write) -> None:
    results = write_run("a")
    main(["bootstrap", str(results), "--n_bootstrap", "40"])
    (path,) = results.rglob("*_intervals.json")
    current = json.loads(path.read_text())
    (run,) = load_runs(results)
    assert stored_default_intervals(run) == current
    old = current | {"metrics": {"accuracy": {"value": 0.5, "ci_lower": 0.1, "ci_upper": 0.9}}}
    path.write_text(json.dumps(old | {"rules": 1}))
    assert stored_default_intervals(run) is None
    main(["bootstrap", str(results), "--n_bootstrap", "40"])
    assert json.loads(path.read_text()) == current


def test_a_run_that_cannot_be_resampled_does_not_stop_the_others(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("a")
    results = write_run("b")
    next((results / "Colon_a").rglob("*_detailed_results.csv")).unlink()
    assert main(["bootstrap", str(results), "--n_bootstrap", "40"]) == 2
    captured = capsys.readouterr()
    assert "1 computed, 0 skipped, 1 failed" in captured.out
    assert "1 of 2 runs have no intervals: cannot read the predictions" in captured.err
    assert content(results)["encoder"] == "b"
    summary = json.loads((results / "bootstrap_ci_summary.json").read_text())
    assert [row["file"] for row in summary["without_intervals"]] == [
        "Colon_a/Linear-Probe/Linear-Probe_complete_results.json"
    ]
