"""Regression and survival from arrays, tables and the command line, up to tables and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import histobench as hb
from histobench.cli.main import main
from histobench.roi.protocols import eva
from histobench.roi.task_catalogue import TARGETS, TASKS

PATIENTS, TILES = 30, 3


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features of tiles, a number and (time, event) of their patients, and the patients."""
    draw = np.random.default_rng(seed)
    patient = np.repeat(np.arange(PATIENTS), TILES)
    number = draw.normal(size=PATIENTS)
    lived, end = draw.exponential(np.exp(-2 * number)), draw.exponential(3, size=PATIENTS)
    survival = np.stack([np.minimum(lived, end), lived <= end], axis=1).astype(float)
    x = draw.normal(size=(len(patient), 6))
    x[:, 0] = number[patient] + 0.3 * x[:, 0]
    return x.astype(np.float32), number[patient], survival[patient], patient


def evaluated(target: str | None, y: Any = None, *, groups: bool = True, **more: object) -> hb.Benchmark:
    """An evaluation of `y` (default: the target's own) on the features of `arrays`."""
    x, number, survival, patient = arrays()
    y = (survival if target == "survival" else number) if y is None else y
    cut = 20 * TILES
    more |= {"groups": patient[cut:], "train_groups": patient[:cut]} if groups else {}
    return hb.evaluate(x[:cut], x[cut:], y[:cut], y[cut:], **more, **({"target": target} if target else {}))


def test_regression_of_patients_is_ridge_on_their_mean_features(tmp_path: Path) -> None:
    found = evaluated("regression", results=tmp_path)
    table = found.to_frame().set_index(["setting", "metric"])
    assert set(table.index.get_level_values("setting")) == {"tiles", "patients"}
    x, number, _, patient = arrays()
    mean = np.stack([x[patient == k].astype(np.float64).mean(axis=0) for k in range(PATIENTS)])
    truth = np.array([number[patient == k][0] for k in range(PATIENTS)])
    written = json.loads((tmp_path / "Regression" / "Regression_patients_complete_results.json").read_text())
    model = make_pipeline(StandardScaler(), Ridge(written["additional_info"]["alpha"]))
    expected = r2_score(truth[20:], model.fit(mean[:20], truth[:20]).predict(mean[20:]))
    row = table.loc[("patients", "r2")]
    assert row["value"] == pytest.approx(expected, rel=1e-5)
    assert row["low"] < row["value"] < row["high"]
    assert row["n"] == 10
    assert written["additional_info"]["alpha_chosen_on"].endswith("by single rows")  # a patient is a row
    tiles = json.loads((tmp_path / "Regression" / "Regression_tiles_complete_results.json").read_text())
    assert tiles["additional_info"]["alpha_chosen_on"].endswith("by whole groups")
    assert (tmp_path / "results.parquet").exists()


def test_tiles_with_values_of_their_own_are_not_pooled() -> None:
    number = arrays()[1]
    found = evaluated("regression", number + np.random.default_rng(1).normal(size=len(number)))
    assert set(found.to_frame()["setting"]) == {"tiles"}


def test_survival_has_one_prediction_per_patient() -> None:
    found = evaluated("survival")
    table = found.to_frame().set_index("metric")
    assert table.loc["harrell_c", "value"] > 0.7
    assert table.loc["uno_c", "n"] == 10
    frame = found.predictions("encoder", "Survival")
    assert list(frame.columns) == ["image", "group", "time", "event", "predicted risk"]
    assert len(frame) == 10


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["uni", "eva", pytest.param("sklearn", marks=pytest.mark.nightly)])
def test_each_label_has_the_probe_of_the_preset(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(eva.eva_runs.__kwdefaults__, "steps", 20)
    number = arrays()[1]
    labels = pd.DataFrame({"high": number > 0.2, "low": number < -0.5}).astype(int)
    found = evaluated("multilabel", labels, preset=preset, results=tmp_path)
    frame = found.predictions("encoder", "Multi-label", setting="tiles")
    alone = evaluated(None, labels["low"], tasks="Linear-Probe", preset=preset)
    alone = alone.predictions("encoder", "Linear-Probe")
    np.testing.assert_allclose(frame["predicted low"], alone["1"], rtol=1e-6)
    table = found.to_frame().set_index(["setting", "metric"])["value"]
    assert table["tiles", "macro_auroc"] == pytest.approx(
        roc_auc_score(labels[60:], frame[["predicted high", "predicted low"]])
    )
    assert ("patients", "micro_ap") in table.index
    written = json.loads((tmp_path / "Multi-label" / "Multi-label_tiles_complete_results.json").read_text())
    low = written["metrics"]["per_class"]["low"]["auroc"]
    assert low == pytest.approx(roc_auc_score(labels["low"][60:], alone["1"]))


@pytest.mark.slow
def test_levels_are_predicted_for_tiles_and_patients() -> None:
    x, number, _, _ = arrays()
    y = np.digitize(number, [-0.5, 0.5]) + 1
    assert set(evaluated("ordinal", y).to_frame()["setting"]) == {"tiles", "patients"}
    with pytest.raises(hb.HistobenchError, match="level 9 is not in the training set"):
        hb.evaluate(x[:60], x[60:], y[:60], np.full(len(x) - 60, 9), target="ordinal")


def test_tasks_of_classes_say_that_they_do_not_apply() -> None:
    others = [task for task in TASKS if task not in ("Regression", "Robustness")]
    found = evaluated("regression", tasks=["Regression", *others])
    assert set(found.skipped) == set(others)
    assert found.skipped["KNN"] == "does not apply to a regression target, whose task is Regression"
    with pytest.raises(hb.HistobenchError, match="needs a regression target: give"):
        hb.evaluate(*(np.eye(4)[[0, 1, 2, 3]],) * 2, [0, 1, 0, 1], [0, 1, 0, 1], tasks="Regression")


@pytest.mark.parametrize(
    ("target", "labels", "said"),
    [
        ("regression", np.ones(60), "label is 1 everywhere"),
        ("regression", np.full(60, np.nan), "label 'nan' is not a number"),
        ("regression", np.array(["a"] * 60), "needs numbers"),
        ("survival", np.ones(60), r"needs numbers \[60, 2\] \(time, event\)"),
        ("survival", np.stack([1 + np.arange(60.0), np.full(60, 2.0)], axis=1), "event '2.0' is not 0"),
        ("survival", np.stack([1 - np.arange(60.0), np.ones(60)], axis=1), "time '-1.0' is below 0"),
        ("survival", np.stack([1 + np.arange(60.0), np.zeros(60)], axis=1), "event is 0 everywhere"),
        ("surviva", np.ones(60), "did you mean"),
        ("ordinal", np.arange(60) / 2, "label '0.5' is not a whole number"),
        ("ordinal", np.arange(60), "label has 60 levels and looks continuous"),
        ("multilabel", np.ones(60), "several labels need numbers"),
        ("multilabel", np.eye(3)[np.arange(60) % 3] * [1, 1, 0], "label_3 is 0 everywhere"),
        ("multilabel", np.eye(2)[np.arange(60) % 2] * 2, "label_1 '2.0' is not 0 or 1"),
    ],
)
def test_a_wrong_target_is_one_line(target: str, labels: np.ndarray, said: str) -> None:
    x, number, survival, _ = arrays()
    with pytest.raises(ValueError, match=said):
        hb.evaluate(
            x[:60], x[60:], labels, survival[60:] if target == "survival" else number[60:], target=target
        )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiles whose brightness is the number of their patient."""
    folder = tmp_path_factory.mktemp("tiles")
    _, number, survival, patient = arrays()
    draw, rows = np.random.default_rng(0), []
    for k, owner in enumerate(patient):
        pixels = draw.normal(128 + 40 * number[k], 20, size=(32, 32, 3)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.png")
        split = "train" if owner < 20 else "test"
        about = (number[k], survival[k, 0], int(survival[k, 1]), int(number[k] > 0))
        rows.append((f"{k}.png", split, f"p{owner}", *about))
    names = ["image_path", "split", "group", "label", "time", "event", "high"]
    frame = pd.DataFrame(rows, columns=names)
    frame.to_csv(folder / "tiles.csv", index=False)
    return folder / "tiles.csv"


@pytest.mark.slow
def test_run_compare_and_report(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoders = f"--models tiny-vl --device cpu --num-workers 0 --results {tmp_path / 'r'}".split()
    columns = {"multilabel": ["--target-columns", "event,high"], "ordinal": ["--target-columns", "high"]}
    for target in [each for each in TARGETS if each != "mask"]:  # masks need images of their own
        flags = ["--target", target, *columns.get(target, [])]
        assert main(["run", "--data", str(table), *encoders, *flags]) == 0
        assert TARGETS[target].task in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "r"), "--task", "Survival"]) == 0
    assert "harrell_c" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "site")]) == 0
    site = (tmp_path / "site" / "data" / "site.js").read_text()
    assert '"name":"r2"' in site.replace(" ", "")
    assert "balanced_accuracy" not in site
    whole = pd.read_parquet(tmp_path / "r" / "results.parquet")
    assert {"r2", "mae", "harrell_c", "uno_c", "macro_ap"} <= set(whole["metric"])
    assert whole.query("metric == 'r2'")["low"].notna().all()
    done = hb.run(
        hb.load_dataset(table, target="regression"), "tiny-vl", results=tmp_path / "r", device="cpu"
    )
    assert "Regression" in repr(done)


@pytest.mark.parametrize(
    ("column", "value", "target", "said"),
    [
        ("time", "", "survival", "no time"),
        ("event", 3, "survival", "event '3' is not 0 (censored) or 1 (--target survival)"),
        ("time", -1, "survival", "time '-1' is below 0 (--target survival)"),
        ("label", "many", "regression", "label 'many' is not a number (--target regression)"),
        ("label", 4.0, "regression", "label is 4 everywhere"),
        ("label", None, "class", "give --target regression"),
        ("label", None, "multilabel", "needs --target-columns: two or more columns of 0 and 1"),
    ],
)
def test_bad_tables_are_one_line_and_exit_code_2(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    column: str, value: object, target: str, said: str,
) -> None:  # fmt: skip
    frame = pd.read_csv(table).astype(object)
    frame["image_path"] = [str(table.parent / name) for name in frame["image_path"]]
    if value is not None:
        frame.loc[: None if value == 4.0 else 0, column] = value
    frame.to_csv(tmp_path / "bad.csv", index=False)
    for command in (
        ["run", "--models", "tiny-vl", "--results", str(tmp_path / "r"), "--data"],
        ["data", "check"],
    ):
        assert main([*command, str(tmp_path / "bad.csv"), "--target", target]) == 2
        printed = capsys.readouterr()
        assert said in printed.err + printed.out


@pytest.mark.slow
def test_classes_and_a_target_may_share_a_results_folder(tmp_path: Path) -> None:
    both: dict[str, Any] = {"groups": False, "encoder": "a", "results": tmp_path}
    evaluated(None, (arrays()[1] > 0).astype(int), tasks="Proto", **both)
    found = evaluated("regression", **both)
    assert set(found.to_frame()["task"]) == {"Proto", "Regression"}
    assert not any(run.caveats for run in found.runs)
    with pytest.raises(hb.HistobenchError, match="r2 is not for classes"):
        hb.compare(tmp_path, task="Proto", metric="r2")


def test_nothing_to_tell_apart_is_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(table)
    frame["label"] = "benign"
    frame.to_csv(table.parent / "one.csv", index=False)
    results = ["--results", str(tmp_path / "r")]
    assert main(["run", "--data", str(table.parent / "one.csv"), "--models", "tiny-vl", *results]) == 2
    assert capsys.readouterr().err.strip().endswith("all images are of one class (benign); two are needed")
    ended = arrays()[2].copy()
    ended[60:, 1] = 0
    with pytest.raises(hb.HistobenchError, match="test set: event is 0 everywhere"):
        evaluated("survival", ended)
