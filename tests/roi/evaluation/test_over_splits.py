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
from histobench.roi.comparison.splits_compared import (
    as_plain,
    compare_results,
    compare_splits,
    evidence_of_splits,
    pooled_runs,
    split_grid,
)
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.over_splits import evaluate_over_splits
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.options import Options, Scheme
from histobench.roi.plan.summary import compare_tasks_over_splits
from histobench.roi.result_options import CompareOptions
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


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("brier", -1)])
def test_the_comparison_is_that_of_the_values_of_the_splits(metric: str, sign: int, results: Path) -> None:
    runs = [run for run in split_runs(results) if run.task == "KNN"]
    (table,) = compare_splits(runs, metric=metric, alpha=0.2)
    names = [entry.name for entry in table.entries]
    values = np.array(
        [[run.metrics[metric] for run in runs if run.identity.encoder == name] for name in names], dtype=float
    )
    assert names == ["good", "poor"]
    assert (table.n_images, table.n_groups, table.n_splits) == (108, 24, 10)
    ranks = stats.rankdata(-sign * values, axis=0)
    ratio = np.mean([run.info["split"]["num_test"] / run.info["split"]["num_train"] for run in runs])
    reach = stats.t.ppf(0.9, 9) * np.sqrt(1 / 10 + ratio)
    for entry, each, rank in zip(table.entries, values, ranks, strict=True):
        ends = each.mean() + reach * each.std(ddof=1) * np.array([-1, 1])
        assert [entry.mean.mean, entry.mean.low, entry.mean.high] == pytest.approx([each.mean(), *ends])
        shown = entry.spread, entry.least, entry.greatest, entry.mean_rank, entry.first
        first = (rank == ranks.min(axis=0)).mean()
        assert shown == pytest.approx((each.std(ddof=1), each.min(), each.max(), rank.mean(), first))
        low, high = np.quantile(rank, [0.1, 0.9])
        assert (entry.rank_low, entry.rank_high) == (np.floor(low), np.ceil(high))
    difference = values[0] - values[1]
    error = np.sqrt((1 / 10 + ratio) * difference.var(ddof=1))
    (pair,) = table.pairs
    assert pair.p_value == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / error, 9))
    ends = difference.mean() + stats.t.ppf([0.1, 0.9], 9) * error
    assert [pair.difference.low, pair.difference.high] == pytest.approx(ends)
    assert pair.wins == (sign * difference > 0).mean()
    evidence = evidence_of_splits(table)
    assert (evidence.level, evidence.splits, evidence.n_images) == (0.8, "10 splits (5x2)", 108)
    assert "5x2" in split_grid(table).title
    json.dumps(as_plain(table), allow_nan=False)


def test_what_was_done_is_not_done_again(results: Path) -> None:
    request = request_of(results, "good", 3.0)
    again = evaluate_over_splits(request, Scheme(5, 2), resume=True)
    assert all(part.unchanged == ("KNN", "Proto") and not part.rows for part in again)


def test_other_folds_are_refused(results: Path) -> None:
    request = replace(request_of(results, "other", 2.0), seed=3)
    evaluate_over_splits(request, Scheme(5, 2))
    runs = [run for run in split_runs(results) if run.task == "KNN"]
    with pytest.raises(HistobenchError, match=r"good \[seed 0\] with other \[seed 3\] .* other test images"):
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
    _, found = compare_results(tmp_path, CompareOptions(metric="accuracy", alpha=0.2, splits=True))
    (table,) = found.tables
    assert (found.metric, found.alpha) == ("accuracy", 0.2)
    assert (table.n_images, table.n_groups) == (108, 24)
    assert "leave-one-group-out" in table.dataset
    _, (summarized,), _ = compare_tasks_over_splits(tmp_path)
    assert summarized.metric == "balanced_accuracy"
    assert (tmp_path / "comparison" / "uni" / "leave-one-group-out").is_dir()


def test_the_files_of_a_split_tell_what_a_line_for_every_split_would_repeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = evaluate_over_splits(request_of(tmp_path, "good", 3.0), Scheme(1, 0))
    caveats = [text for part in every for row in part.rows for text in row.caveats]
    assert sum("one group" in text for text in caveats) >= len(every)
    assert caplog.text == ""


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
    assert main(["compare", f"{tmp_path}/r", "--metric=accuracy"]) == 0
    assert "--splits compares over the repeated splits" in capsys.readouterr().out
    (written,) = (tmp_path / "r" / "comparison").glob("splits_Proto_accuracy.json")
    (table,) = json.loads(written.read_text())
    assert [entry["name"] for entry in table["entries"]] == list(skills)
    assert (table["test_to_train"], table["alpha"]) == (0.5, 0.2)
    compared = hb.compare(tmp_path / "r", splits=True, metric="accuracy", alpha=0.2)
    shown = ["first", "second", "difference", "low", "high", "p", "p (Holm)", "holds"]
    for row, pair in zip(compared.to_frame()[shown].values.tolist(), table["pairs"], strict=True):
        mean = pair.pop("difference")
        numbers = mean["mean"], mean["low"], mean["high"], pair["p_value"], pair["p_adjusted"]
        assert row == [pair["first"], pair["second"], *numbers, pair["holds"]]
    assert compared.ranked()["encoder"].tolist() == list(skills)
    p_values = sorted(pair["p_value"] for pair in table["pairs"])
    holm = np.maximum.accumulate(np.array(p_values) * (3, 2, 1))
    assert sorted(pair["p_adjusted"] for pair in table["pairs"]) == pytest.approx(holm)
    rows = csv.DictReader(written.with_suffix(".csv").read_text().splitlines())
    for row, entry in zip(rows, table["entries"], strict=True):
        for name in ("mean_rank", "rank_low", "rank_high", "first"):
            assert float(row[name]) == entry[name]
