"""What stands behind a number is said beside it: in the results file, in the tables, in comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import feature_set
from histobench.cli.evaluate import print_outcome
from histobench.cli.main import main
from histobench.roi.comparison.choice import run_command
from histobench.roi.evaluation.caveats import caveats, site_caveats
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import load_runs


def features(labels: list[int], groups: list[str] | None = None, *, d: int = 16, seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(4, d))
    rows = means[labels] + rng.normal(size=(len(labels), d))
    meta = {"dataset": "set", "encoder": f"e{d}", "classes": ["benign", "tumour", "rare"]}
    return feature_set(rows, labels, names=f"{seed}-{{}}", groups=groups, **meta)


TRAIN = [0, 1, 2] * 20


def evaluated(
    folder: Path, test: FeatureSet, *tasks: str, train: FeatureSet | None = None
) -> EvaluationOutcome:
    return evaluate(EvaluationRequest(tasks, train or features(TRAIN), test, folder, device="cpu"))


def test_a_class_from_one_patient_is_marked_in_file_table_and_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [0, 1] * 20 + [2] * 6
    groups = [f"p{k // 4}" for k in range(40)] + ["p99"] * 6
    for d in (16, 24):
        test = features(labels, groups, d=d, seed=1)
        outcome = evaluated(tmp_path / str(d), test, "KNN", train=features(TRAIN, d=d))
    print_outcome(outcome)
    said = "class rare: all 6 test images come from one group (p99)"
    table = capsys.readouterr().out
    assert "KNN (1)" in table
    assert f"(1) {said}" in table
    content = json.loads(TaskFiles.of(tmp_path / "16", "KNN").complete.read_text())
    assert any(said in text for text in content["additional_info"]["caveats"])
    assert main(["compare", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("] (1)") == 4  # of balanced accuracy, and of accuracy that is tested instead
    assert f"(1) {said}" in shown


def test_images_left_out_are_named_in_the_answer_files_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for d in (16, 24):
        train, test = features(TRAIN, d=d), features([0, 1, 2] * 10, d=d, seed=1)
        train.metadata["skipped"] = [{"image": "rare/7.png", "reason": "the image is damaged"}]
        done = evaluated(tmp_path / "all" / str(d), test, "KNN", train=train)
    said = "1 image left out as unusable (rare/7.png: the image is damaged)"
    assert all(said in row.caveats for row in done.rows)
    assert main(["compare", str(tmp_path / "all")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    (run, *_) = load_runs(tmp_path / "all")
    run = replace(run, identity=replace(run.identity, preset="thunder", seed=3))
    command = run_command(tmp_path, "set", ["e16", "f@elsewhere"], run, splits="5x5")
    asked = "--data set --encoders e16 --features f=FILE --seed 3 --tasks KNN --presets thunder --splits 5x5"
    assert command == f"histobench run {asked} --on-bad-image skip --results {tmp_path}"


def _at_sites(labels: list[int], sites: list[str], **more: tuple[str, ...]) -> FeatureSet:
    groups = [f"{len(labels)}-{k // 3}" for k in range(len(labels))]
    return replace(features(labels, groups, seed=len(labels)), sites={"scanner": tuple(sites), **more})


def test_confounded_data_are_told_with_every_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever runs the usual tasks has not run `data check`, nor asked for robustness."""
    train = _at_sites(TRAIN, ["sharp" if label == 0 else "" for label in TRAIN])
    test = _at_sites(TRAIN[:30], ["" if label == 0 else "soft" for label in TRAIN[:30]])  # both show it
    print_outcome(evaluated(tmp_path, test, "KNN", train=train))
    said = "label and scanner are confounded (Cramer's V 1.00): accuracy may come from the scanner instead of"
    assert said in caplog.text
    shown = capsys.readouterr().out
    assert "KNN (1)" in shown
    assert said in " ".join(shown.split())
    content = json.loads(TaskFiles.of(tmp_path, "KNN").complete.read_text())
    assert any(said in text for text in content["additional_info"]["caveats"])


def test_what_is_crossed_or_is_no_site_is_not_called_confounded() -> None:
    crossed = ["sharp", "soft"] * 30
    slides = tuple(f"p{k // 3}" for k in range(60))  # as the groups
    places = tuple(map(str, TRAIN))
    assert site_caveats([_at_sites(TRAIN, crossed, slide=slides, pair=places)]) == ()
    assert site_caveats([features(TRAIN)]) == ()
    assert site_caveats([_at_sites([k // 30 for k in range(60)], [str(k // 3) for k in range(60)])]) == ()
    (said,) = site_caveats([_at_sites(TRAIN, crossed, stain=places)])
    assert "label and stain are confounded" in said


def test_classes_that_all_come_from_one_patient_each_are_told_in_one_line() -> None:
    labels, groups = [0] * 4 + [1] * 4 + [2] * 4, ["p1"] * 4 + ["p2"] * 4 + ["p3"] * 4
    (said,) = caveats(features(labels, groups), ("benign", "tumour", "rare"))
    assert said.startswith(
        "3 of 3 classes have their test images from one group each: benign (p1), tumour (p2), "
    )


def test_a_class_without_test_images_is_named_where_means_are_over_the_others(tmp_path: Path) -> None:
    outcome = evaluated(tmp_path, features([0, 1] * 10, seed=1), "Proto")
    assert outcome.rows[0].caveats == (
        "class rare has no test images: balanced accuracy and other means over classes are over "
        "2 of 3 classes",
    )


def test_a_probe_whose_weights_are_all_zero_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = features(TRAIN, d=4)
    outcome = evaluated(tmp_path, features(TRAIN, d=4, seed=1), "Linear-Probe", "KNN", train=few)
    by_task = {row.task: row.caveats for row in outcome.rows}
    assert "the optimum of the linear probe is W = 0" in by_task["Linear-Probe"][0]
    assert by_task["KNN"] == ()
    print_outcome(outcome)
    table = capsys.readouterr().out
    assert "Linear-Probe (1)" in table
    assert "(1) the optimum of the linear probe is W = 0" in table
    test, many = (features(TRAIN, d=200, seed=seed) for seed in (1, 0))
    assert evaluated(tmp_path / "many", test, "Linear-Probe", train=many).rows[0].caveats == ()


@pytest.mark.slow
def test_shots_that_were_left_out_do_not_mark_the_others(tmp_path: Path) -> None:
    outcome = evaluated(tmp_path, features(TRAIN, seed=1), "Few-shot")
    assert all(row.caveats == () for row in outcome.rows)
    content = json.loads(TaskFiles.of(tmp_path, "Few-shot", outcome.rows[0].setting).complete.read_text())
    assert any("left out" in text for text in content["additional_info"]["warnings"])
