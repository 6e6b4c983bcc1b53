"""The task Patient: votes, pooled features and attention, one prediction per patient."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from builders import feature_set
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.selection import by_task, select_runs
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, evaluate
from histobench.roi.evaluation.patients import owners_of
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import DatasetEntry, Options, Plan
from histobench.roi.plan.plan_run import check_patients
from histobench.roi.predictions import TileAttention
from histobench.roi.protocols import attention_mil, eva
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun

#: With fewer dimensions the optimum of the `uni` probe is W = 0.
WIDTH = 128


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_mil, "EPOCHS", 2)


def tiles(patients: int, split: str, *, encoder: str = "e", noise: float = 1.0) -> FeatureSet:
    """Patients of 1 to 6 tiles, mixed; every patient has one of two labels."""
    draw = np.random.default_rng([len(split), ord(encoder[0])])
    patient_of = np.random.default_rng(len(split)).permutation(
        np.repeat(np.arange(patients), 1 + np.arange(patients) % 6)
    )
    labels = patient_of % 2
    rows = labels[:, None] * (np.arange(WIDTH) < 8) + noise * draw.normal(size=(len(labels), WIDTH))
    groups, meta = [f"{split} patient {k}" for k in patient_of], {"dataset": "set", "encoder": encoder}
    classes = ["benign", "tumor"]
    return feature_set(rows, labels, names=split + "-{}.png", groups=groups, classes=classes, **meta)


def run(
    folder: Path,
    train: FeatureSet,
    test: FeatureSet,
    *,
    tasks: tuple[str, ...] = ("Patient",),
    val: FeatureSet | None = None,
    preset: str = "uni",
    use_sklearn: bool = False,
) -> EvaluationOutcome:
    options = Options(use_sklearn=use_sklearn)
    return evaluate(
        EvaluationRequest(tasks, train, test, folder, val=val, preset=preset, device="cpu", options=options)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EvaluationOutcome]:
    """The linear probe and the three methods on the usual tiles."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_mil, "EPOCHS", 2)
        parts = tiles(30, "train"), tiles(20, "test")
        return folder, run(folder, *parts, val=tiles(10, "val"), tasks=("Linear-Probe", "Patient"))


def stored(folder: Path, setting: str) -> StoredRun:
    return next(run for run in load_runs(folder) if (run.task, run.setting) == ("Patient", setting))


@pytest.mark.slow
def test_votes_are_the_mean_probability_of_a_patients_tiles(finished: tuple[Path, EvaluationOutcome]) -> None:
    test = tiles(20, "test")
    folder, done = finished
    assert not done.failed
    assert not done.skipped
    assert [(row.task, row.setting, row.n) for row in done.rows[1:]] == [
        ("Patient", "votes", 20), ("Patient", "mean", 20), ("Patient", "abmil", 20),
    ]  # fmt: skip
    by_tile = next(run for run in load_runs(folder) if run.task == "Linear-Probe").predictions
    votes = stored(folder, "votes").predictions
    assert len(set(votes.img_names)) == 20
    assert np.ptp(votes.probabilities[:, 0]) > 0.1
    for k, patient in enumerate(votes.img_names):
        own = [row for row, group in enumerate(test.groups or ()) if group == patient]
        expected = sum(by_tile.probabilities[row] for row in own) / len(own)
        np.testing.assert_allclose(votes.probabilities[k], expected, rtol=1e-12)
        assert votes.labels[k] == by_tile.labels[own[0]]
    right = (votes.probabilities.argmax(1) == votes.labels).mean()
    assert stored(folder, "votes").metrics["accuracy"] == pytest.approx(right)


@pytest.mark.slow
def test_pooled_features_are_fitted_as_scikit_learn_fits_them(tmp_path: Path) -> None:
    train, test = tiles(30, "train"), tiles(20, "test")
    run(tmp_path, train, test, use_sklearn=True)

    def pooled(part: FeatureSet) -> tuple[np.ndarray, np.ndarray, list[str]]:
        names = list(dict.fromkeys(part.groups or ()))
        rows = [[k for k, group in enumerate(part.groups or ()) if group == name] for name in names]
        means = np.stack([part.embeddings[own].double().mean(0).float().numpy() for own in rows])
        return means, np.array([int(part.labels[own[0]]) for own in rows]), names

    x, y, _ = pooled(train)
    means, labels, names = pooled(test)
    model = LogisticRegression(C=WIDTH * 2 / 100, max_iter=1000, random_state=0).fit(x, y)
    found = stored(tmp_path, "mean").predictions
    assert list(found.img_names) == names
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.probabilities, model.predict_proba(means), rtol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["sklearn", "thunder", "eva"])
def test_every_preset_has_the_three_methods(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(eva.eva_runs.__kwdefaults__, "steps", 20)
    done = run(tmp_path, tiles(30, "train"), tiles(20, "test"), preset=preset)
    assert not done.failed
    assert [row.setting for row in done.rows] == ["votes", "mean", "abmil"]
    assert stored(tmp_path, "mean").num_samples == 20


@pytest.mark.slow
def test_attention_and_the_top_tiles_of_each_patient_are_stored(
    finished: tuple[Path, EvaluationOutcome],
) -> None:
    test = tiles(20, "test")
    folder, _ = finished
    with np.load(folder / "Patient" / "Patient_abmil_attention.npz", allow_pickle=False) as arrays:
        weights, patient_of = arrays["attention"], arrays["patient"]
    names = stored(folder, "abmil").predictions.img_names
    assert [names[k] for k in patient_of] == list(test.groups or ())
    np.testing.assert_allclose(np.bincount(patient_of, weights), 1, rtol=1e-5)
    with (folder / "Patient" / "Patient_abmil_top_tiles.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == len(test)  # at most six tiles each
    first = [row for row in rows if row["rank"] == "1"]
    assert [row["patient"] for row in first] == list(names)
    for k, row in enumerate(first):
        own = np.flatnonzero(patient_of == k)
        assert row["img_name"] == test.img_names[own[weights[own].argmax()]]
    info = stored(folder, "abmil").info
    assert (info["num_runs"], info["unit"], info["num_train_patients"]) == (5, "patients", 30)


def test_no_more_than_ten_top_tiles_are_named() -> None:
    names = tuple(f"{k}" for k in range(30))
    attention = TileAttention(names, ("p", "q"), np.arange(30) % 2, np.arange(30) / 435)
    rows = list(attention.top_tiles())
    assert [row[2] for row in rows if row[0] == "p"] == [str(k) for k in range(28, 8, -2)]
    assert [row[1] for row in rows] == [*range(1, 11)] * 2


@pytest.mark.slow
def test_a_column_gives_patients_a_label_of_their_own(
    tmp_path: Path, finished: tuple[Path, EvaluationOutcome]
) -> None:
    def relabelled(part: FeatureSet) -> FeatureSet:
        """Tiles have the tissue as label; the patient is responder or not."""
        tissue = torch.arange(len(part)) % 3
        told = tuple("responder" if label else "none" for label in part.labels.tolist())
        metadata = {**part.metadata, "classes": ["ADI", "STR", "TUM"]}
        return replace(part, labels=tissue, metadata=metadata, sites={"group_label": told})

    train, val, test = map(relabelled, (tiles(30, "train"), tiles(10, "val"), tiles(20, "test")))
    done = run(tmp_path / "column", train, test, val=val)
    assert not done.failed
    for setting in ("votes", "mean"):
        one, other = stored(tmp_path / "column", setting), stored(finished[0], setting)
        assert one.classes == ("none", "responder")
        np.testing.assert_array_equal(one.predictions.probabilities, other.predictions.probabilities)
    assert not any("ADI" in text for text in stored(tmp_path / "column", "votes").caveats)


def test_a_patient_with_two_labels_is_one_clear_line(tmp_path: Path) -> None:
    test = tiles(20, "test")
    labels = test.labels.clone()
    row = (test.groups or ()).index("test patient 3")
    labels[row] = 0
    done = run(tmp_path, tiles(30, "train"), replace(test, labels=labels), tasks=("Proto", "Patient"))
    assert [row.task for row in done.rows] == ["Proto"]
    assert done.failed["Patient"].startswith("patient test patient 3 has two labels, ")
    assert "\n" not in done.failed["Patient"]
    assert "column 'group_label'" in done.failed["Patient"]


def test_without_groups_or_patients_to_hold_out_it_is_skipped(tmp_path: Path) -> None:
    train, test = tiles(30, "train"), tiles(20, "test")
    done = run(tmp_path, replace(train, groups=None), replace(test, groups=None))
    assert "group_column" in done.skipped["Patient"]
    done = run(tmp_path, tiles(2, "train"), test)
    assert "every class has one training patient" in done.skipped["Patient"]
    assert not done.rows
    groups = ("", *(test.groups or ())[1:-1], "")  # tiles without one are patients of their own
    assert owners_of(replace(test, groups=groups)) == [test.img_names[0], *groups[1:-1], test.img_names[-1]]


def test_a_label_of_the_test_patients_that_training_lacks_is_named(tmp_path: Path) -> None:
    train, test = tiles(30, "train"), tiles(20, "test")
    train = replace(train, sites={"group_label": ("no",) * len(train)})
    test = replace(test, sites={"group_label": tuple("yes" if k else "no" for k in test.labels.tolist())})
    assert "every class of the test set needs training images" in run(tmp_path, train, test).failed["Patient"]


@pytest.mark.slow
def test_encoders_are_compared_over_patients_method_by_method(tmp_path: Path) -> None:
    for encoder, noise in (("good", 0.5), ("poor", 3.0)):
        parts = (tiles(60, split, encoder=encoder, noise=noise) for split in ("train", "test"))
        run(tmp_path / encoder, *parts)
    runs = load_runs(tmp_path)
    assert {key[2] for key in by_task(runs)} == {"votes", "mean", "abmil"}
    for setting in ("votes", "abmil"):
        found = compare_runs(select_runs(runs, task="Patient", setting=setting), CompareSettings("accuracy"))
        (table,) = found.tables
        assert (table.n_images, table.n_groups) == (60, 60)
        assert "patients" in table.resampled or "groups" in table.resampled
        pair = table.pair("good", "poor")
        assert pair is not None
        right = {each.identity.encoder: each.metrics["accuracy"] for each in runs if each.setting == setting}
        assert pair.difference == pytest.approx((right["good"] or 0) - (right["poor"] or 0))
        assert pair.interval.low is not None


def test_a_plan_names_a_patient_with_two_labels_before_any_work(tmp_path: Path) -> None:
    def dataset(group_label: tuple[str, str] | None) -> RoiDataset:
        sites = [(("group_label", each),) for each in group_label] if group_label else [(), ()]
        images = tuple(
            RoiImage(tmp_path / f"{k}.png", k, f"{k}.png", f"set.csv:{k + 2}", "P7", site)
            for k, site in enumerate(sites)
        )
        return RoiDataset("set", ("ADI", "TUM"), {"train": images})

    entry = DatasetEntry("set", tmp_path / "set.csv")
    plan = Plan((entry,), ("tiny-vl",), tmp_path, tasks=("patient",))
    with pytest.raises(HistobenchError, match=r"^set: patient P7 has two labels, ADI and TUM: .*group_label"):
        check_patients(plan, {"set": dataset(None)})
    with pytest.raises(HistobenchError, match="two labels, no and yes"):
        check_patients(plan, {"set": dataset(("no", "yes"))})
    check_patients(plan, {"set": dataset(("yes", "yes"))})
    check_patients(replace(plan, tasks=("KNN",)), {"set": dataset(None)})
