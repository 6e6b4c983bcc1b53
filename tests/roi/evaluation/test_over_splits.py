"""The same features on many splits: results of their own, compared with tests that know about overlap."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import histobench as hb
from builders import feature_set
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.splits_compared import (
    as_plain,
    compare_splits,
    pooled_runs,
    split_grid,
    write_split_tables,
)
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.over_splits import evaluate_over_splits
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.options import Options, Scheme
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs, split_runs

pytestmark = pytest.mark.slow


def features(part: str, n: int, *, skill: float, encoder: str) -> FeatureSet:
    """Images of twelve patients; the better the encoder, the further the classes lie apart."""
    rng = np.random.default_rng([n, sum(map(ord, part))])
    labels = np.arange(n) % 3
    patient = np.arange(n) * 12 // n
    own = np.random.default_rng(sum(map(ord, encoder + part)))
    x = skill * np.eye(3)[labels] + 0.4 * rng.normal(size=(12, 3))[patient] + own.normal(size=(n, 3))
    groups, meta = [f"{part}-p{k}" for k in patient], {"classes": ["a", "b", "c"], "encoder": encoder}
    return feature_set(x, labels, names=f"{part}-{{:03d}}.png", groups=groups, dataset="d", **meta)


def request_of(folder: Path, encoder: str, skill: float, **more: object) -> EvaluationRequest:
    return EvaluationRequest(
        ("KNN", "Proto"),
        features("train", 72, skill=skill, encoder=encoder),
        features("test", 36, skill=skill, encoder=encoder),
        folder / encoder,
        device="cpu",
        options=Options(n_neighbors=5),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    for encoder, skill in (("good", 3.0), ("poor", 1.2)):
        request = request_of(folder, encoder, skill)
        evaluate(request)
        evaluate_over_splits(request, Scheme(5, 2))
    return folder


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "results"))


def test_splits_are_results_of_their_own_and_no_part_of_the_ordinary_tables(results: Path) -> None:
    assert len(load_runs(results)) == 4
    runs = split_runs(results)
    assert len(runs) == 2 * 2 * 10
    folder = results / "good" / "splits" / "5x2"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir())[:2] == [
        "repeat-01_fold-01",
        "repeat-01_fold-02",
    ]
    with (folder / "folds.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 108
    for run in runs:
        split = run.info["split"]
        assert split["num_train"] + split["num_test"] == 108
        tested = {row["img_name"] for row in rows if row[f"repeat_{split['repeat']}"] == str(split["fold"])}
        assert set(run.predictions.img_names) == tested
        assert run.predictions.groups is not None
        inside = set(run.predictions.groups)
        assert not inside & {row["group"] for row in rows if row["img_name"] not in tested}


def test_the_comparison_is_that_of_the_values_of_the_splits(results: Path) -> None:
    runs = [run for run in split_runs(results) if run.task == "KNN"]
    (table,) = compare_splits(runs, metric="accuracy")
    values = {
        name: np.array([run.metrics["accuracy"] for run in runs if run.identity.encoder == name], dtype=float)
        for name in ("good", "poor")
    }
    good, poor = table.entries
    assert (good.name, good.mean.mean) == ("good", pytest.approx(values["good"].mean()))
    assert (good.least, good.greatest) == (values["good"].min(), values["good"].max())
    assert good.first == (values["good"] >= values["poor"]).mean()
    assert poor.rank_low <= poor.mean_rank <= poor.rank_high
    difference = values["good"] - values["poor"]
    ratio = np.mean([run.info["split"]["num_test"] / run.info["split"]["num_train"] for run in runs])
    error = np.sqrt((1 / 10 + ratio) * difference.var(ddof=1))
    (pair,) = table.pairs
    assert pair.p_value == pytest.approx(2 * stats.t.sf(difference.mean() / error, 9))
    assert pair.wins == (difference > 0).mean()
    assert "5x2" in split_grid(table).title
    (of_losses,) = compare_splits(runs, metric="brier")  # lower is better
    (pair,) = of_losses.pairs
    assert ([entry.name for entry in of_losses.entries], pair.wins) == (["good", "poor"], 1.0)
    assert pair.difference.high < 0
    json.dumps(as_plain(table), allow_nan=False)


def test_what_was_done_is_not_done_again(results: Path) -> None:
    request = request_of(results, "good", 3.0)
    again = evaluate_over_splits(request, Scheme(5, 2), resume=True)
    assert all(part.unchanged == ("KNN", "Proto") and not part.rows for part in again)


def test_other_folds_are_refused(results: Path) -> None:
    request = replace(request_of(results, "other", 2.0), seed=3)
    evaluate_over_splits(request, Scheme(5, 2))
    runs = [run for run in split_runs(results) if run.task == "KNN"]
    with pytest.raises(HistobenchError, match="has other test images"):
        compare_splits(runs)


def test_a_split_that_is_missing_is_left_out_for_all_and_said(results: Path) -> None:
    gone = [run for run in split_runs(results) if run.task == "KNN"][1:]
    (table,) = compare_splits(gone, metric="accuracy")
    assert table.n_splits == 9
    assert "9 of 10 splits" in table.notes[0]
    assert any("9 splits are too few to estimate their variance" in note for note in table.notes)
    assert any("1.0 times the size of training sets" in note for note in table.notes)


def test_leaving_out_one_group_pools_its_predictions_into_one_test_set(tmp_path: Path) -> None:
    for encoder, skill in (("good", 3.0), ("poor", 1.2)):
        evaluate_over_splits(replace(request_of(tmp_path, encoder, skill), tasks=("Proto",)), Scheme(1, 0))
    pooled = pooled_runs(split_runs(tmp_path))
    assert [len(run.predictions) for run in pooled] == [108, 108]
    right = pooled[0].predictions.predicted == pooled[0].predictions.labels
    assert pooled[0].metrics["accuracy"] == pytest.approx(right.mean())
    (table,) = compare_runs(pooled, CompareSettings(metric="accuracy")).tables
    assert (table.n_images, table.n_groups) == (108, 24)
    assert "leave-one-group-out" in table.dataset


def test_groups_that_are_known_for_a_part_only_are_refused(tmp_path: Path) -> None:
    request = request_of(tmp_path, "good", 3.0)
    with pytest.raises(HistobenchError, match="only some of the feature files"):
        evaluate_over_splits(replace(request, test=replace(request.test, groups=None)), Scheme(5, 2))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skills = {"good": 3.0, "fair": 2.0, "poor": 1.2}
    for encoder, skill in skills.items():
        for part, n in (("train", 72), ("test", 36)):
            save(features(part, n, skill=skill, encoder=encoder), tmp_path / f"{encoder}_{part}.pt")
        files = [f"--{part}_feature_file={tmp_path}/{encoder}_{part}.pt" for part in ("train", "test")]
        log = f"--log_dir={tmp_path}/r/{encoder}"
        assert main(["evaluate", "--TASK=Proto", *files, log, "--folds=3", "--repeats=2"]) == 0
    assert main(["compare", f"{tmp_path}/r", "--splits", "--metric=accuracy", "--alpha=0.2"]) == 0
    said = capsys.readouterr().out
    assert "over splits 2x3" in said
    (written,) = (tmp_path / "r" / "comparison").glob("splits_Proto_accuracy.json")
    (table,) = json.loads(written.read_text())
    assert [entry["name"] for entry in table["entries"]] == list(skills)
    values: dict[str, list[float]] = {}
    for run in split_runs(tmp_path / "r"):
        values.setdefault(run.identity.encoder, []).append(run.metrics["accuracy"] or 0)
    for pair in table["pairs"]:  # training sets are twice the size of test sets
        apart = np.array(values[pair["first"]]) - values[pair["second"]]
        middle, error = apart.mean(), np.sqrt((1 / 6 + 1 / 2) * apart.var(ddof=1))
        found = pair["difference"]
        bounds = np.clip(middle + error * stats.t.ppf([0.1, 0.9], 5), -1, 1)
        assert [found["mean"], found["low"], found["high"]] == pytest.approx([middle, *bounds], rel=1e-3)
        assert pair["p_value"] == pytest.approx(2 * stats.t.sf(middle / error, 5), rel=1e-2)
    p_values = sorted(pair["p_value"] for pair in table["pairs"])
    holm = np.maximum.accumulate(np.array(p_values) * (3, 2, 1))
    assert sorted(pair["p_adjusted"] for pair in table["pairs"]) == pytest.approx(holm)
    rows = csv.DictReader(written.with_suffix(".csv").read_text().splitlines())
    for row, entry in zip(rows, table["entries"], strict=True):
        for name in ("mean_rank", "rank_low", "rank_high", "first"):
            assert float(row[name]) == entry[name]


def test_python_compares_over_splits_by_the_corrected_t_test(results: Path) -> None:
    compared = hb.compare(results, splits=True, task="KNN", metric="accuracy")
    pair = compared.to_frame().iloc[0]
    ratios: list[float] = []
    values: dict[str, dict[tuple[int, int], float]] = {"good": {}, "poor": {}}
    for run in split_runs(results):
        if run.task == "KNN":
            split = run.info["split"]
            values[run.identity.encoder][split["repeat"], split["fold"]] = run.metrics["accuracy"] or 0
            ratios.append(split["num_test"] / split["num_train"])
    apart = np.array([values["good"][key] - values["poor"][key] for key in values["good"]])
    error = np.sqrt((1 / len(apart) + np.mean(ratios)) * apart.var(ddof=1))
    assert pair["difference"] == pytest.approx(apart.mean())
    assert pair["p"] == pytest.approx(2 * stats.t.sf(apart.mean() / error, len(apart) - 1))
    assert compared.ranked()["encoder"].tolist() == ["good", "poor"]
    assert "over splits 5x2" in repr(compared)
    assert "good" in compared._repr_html_()
    assert (
        hb.open_results(results)
        .compare(splits=True, task="KNN", metric="accuracy")
        .to_frame()
        .equals(compared.to_frame())
    )


@pytest.mark.nightly
def test_python_compares_leave_one_group_out_like_one_test_set(tmp_path: Path) -> None:
    for encoder, skill in (("good", 3.0), ("poor", 1.2)):
        evaluate_over_splits(request_of(tmp_path, encoder, skill), Scheme(1, 0))
    compared = hb.compare(tmp_path, splits=True, task="KNN")
    assert compared.over_splits == ()
    assert compared.to_frame()["first"].tolist() == ["good"]


def test_the_tables_are_written_without_nan(results: Path, tmp_path: Path) -> None:
    tables = compare_splits([run for run in split_runs(results) if run.task == "Proto"])
    paths = write_split_tables(tables, tmp_path / "out")
    assert [path.suffix for path in paths] == [".csv", ".md", ".json"]
    assert "nan" not in "".join(path.read_text() for path in paths).lower()
