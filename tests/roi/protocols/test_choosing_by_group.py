"""Hyper-parameters are chosen on patients that were not fitted on, wherever patients are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.options import Options
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.protocols.linear_probe import folds, held_out
from histobench.roi.results.reader import load_runs


def patients(n_patients: int, *, images: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, list]:
    """Labels and groups of patients of one class each, as in a set of tumour types."""
    labels = np.repeat(np.arange(n_patients) % classes, images)
    order = np.random.default_rng(seed).permutation(len(labels))
    groups = np.repeat([f"p{number}" for number in range(n_patients)], images)
    return labels[order], groups[order].tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_patients", [6, 9, 41])
def test_no_patient_is_both_fitted_on_and_chosen_by(n_patients: int, seed: int) -> None:
    labels, groups = patients(n_patients, seed=seed)
    parts = [held_out(labels, groups, seed=seed), *folds(labels, groups, seed=seed)]
    for fit, rest in parts:
        assert not {groups[row] for row in fit} & {groups[row] for row in rest}
        assert sorted([*fit, *rest]) == list(range(len(labels)))
        assert len(rest) > 0
    fit, rest = parts[0]
    assert set(labels[fit]) == {0, 1, 2}
    if n_patients >= 9:
        assert 0.1 < len(rest) / len(labels) < 0.4
    assert sorted(np.concatenate([rest for _, rest in parts[1:]])) == list(range(len(labels)))
    np.testing.assert_array_equal(held_out(labels, groups, seed=seed)[1], rest)


def test_a_class_of_one_patient_stays_in_training() -> None:
    labels = np.array([0] * 12 + [1] * 12 + [2] * 3)
    groups = [*(f"a{k // 3}" for k in range(12)), *(f"b{k // 3}" for k in range(12)), "c", "c", "c"]
    for seed in range(10):
        fit, rest = held_out(labels, groups, seed=seed)
        assert set(labels[fit]) == {0, 1, 2}
        assert set(labels[rest]) == {0, 1}


def test_images_without_a_group_are_groups_of_their_own() -> None:
    labels = np.repeat([0, 1], 10)
    _, rest = held_out(labels, [""] * 20)
    assert np.bincount(labels[rest]).tolist() == [2, 2]


def hospital(seed: int = 0) -> tuple[FeatureSet, FeatureSet]:
    """Patients whose own mark is stronger than their disease: only neighbours far enough away help."""
    rng = np.random.default_rng(seed)
    disease = rng.normal(size=(3, 24)) * 0.35

    def features(names: range, images: int) -> FeatureSet:
        rows, labels, groups = [], [], []
        for patient in names:
            label, own = patient % 3, rng.normal(size=24)
            rows += [disease[label] + own + 0.05 * rng.normal(size=24) for _ in range(images)]
            labels += [label] * images
            groups += [f"p{patient}"] * images
        embeddings = torch.tensor(np.array(rows), dtype=torch.float32)
        names_ = tuple(f"{g}-{k}" for k, g in enumerate(groups))
        meta = {"dataset": "hospital", "encoder": "marks", "classes": ["a", "b", "c"]}
        return FeatureSet(embeddings, torch.tensor(labels), names_, tuple(groups), meta)

    return features(range(60), 8), features(range(100, 190), 4)


def info_of(folder: Path, task: str) -> dict:
    return next(run.info for run in load_runs(folder) if run.task == task)


def test_the_number_of_neighbours_is_chosen_for_new_patients_and_the_result_says_how(tmp_path: Path) -> None:
    train, test = hospital()
    for choose_by in ("group", "image"):
        options = Options(choose_by=choose_by)
        request = EvaluationRequest(
            ("KNN",), train, test, tmp_path / choose_by, preset="thunder", options=options, device="cpu"
        )
        assert not evaluate(request).failed
    by_group, by_image = (info_of(tmp_path / name, "KNN") for name in ("group", "image"))
    assert (by_group["chosen_by"], by_image["chosen_by"]) == ("group", "image")
    assert by_image["n_neighbors"] == 1  # the patient's own next image is always nearest
    assert by_group["n_neighbors"] > 8  # more than a patient has images
    by_k = [max(info["val_macro_f1_by_k"].values()) for info in (by_group, by_image)]
    assert by_k[0] < 0.9 < 0.99 < by_k[1]  # what images one by one promised, patients do not keep


@pytest.mark.nightly
def test_cross_validation_of_the_sklearn_preset_holds_out_whole_groups(tmp_path: Path) -> None:
    train, test = hospital()
    request = EvaluationRequest(
        ("Linear-Probe",), train, test, tmp_path, preset="sklearn", device="cpu", options=Options()
    )
    evaluate(request)
    info = info_of(tmp_path, "Linear-Probe")
    assert info["chosen_by"] == "group"
    assert info["C_chosen_on"] == "5-fold cross-validation on the training set, by whole groups"
    assert max(info["balanced_accuracy_by_C"].values()) < 0.9  # 1.0 where folds share patients


def test_where_every_class_is_one_patient_images_are_held_out_and_the_result_says_so(tmp_path: Path) -> None:
    train, test = hospital()
    rows = torch.tensor([k for k, group in enumerate(train.groups or ()) if group in ("p0", "p1", "p2")])
    groups = tuple(train.groups[k] for k in rows)  # type: ignore[index]
    few = FeatureSet(train.embeddings[rows], train.labels[rows], groups, groups, train.metadata)
    evaluate(EvaluationRequest(("KNN",), few, test, tmp_path, preset="thunder", device="cpu"))
    info = info_of(tmp_path, "KNN")
    assert info["chosen_by"] == "image"
    assert any("no group can be held out" in text for text in info["warnings"])


def test_nothing_is_said_about_choosing_where_nothing_is_chosen(tmp_path: Path) -> None:
    train, test = hospital()
    evaluate(EvaluationRequest(("Proto",), train, test, tmp_path / "uni", device="cpu"))
    assert "chosen_by" not in info_of(tmp_path / "uni", "Proto")


def test_the_command_and_the_plan_take_the_choice(tmp_path: Path) -> None:
    train, test = hospital()
    save(train, tmp_path / "train.pt")
    save(test, tmp_path / "test.pt")
    command = ["evaluate", "--TASK", "KNN", "--preset", "thunder", "--choose-by", "image", "--device", "cpu"]
    files = [f"--{part}_feature_file={tmp_path / part}.pt" for part in ("train", "test")]
    assert main([*command, *files, "--log_dir", str(tmp_path / "out")]) == 0
    assert info_of(tmp_path / "out", "KNN")["chosen_by"] == "image"
    values = {"datasets": [str(tmp_path)], "encoders": ["tiny-vl"], "choose_by": "image"}
    assert plan_from(values, where="plan", base=tmp_path).options.choose_by == "image"
    with pytest.raises(HistobenchError, match="`choose_by` 'slide' is unknown"):
        plan_from({**values, "choose_by": "slide"}, where="plan", base=tmp_path)
