"""Metrics of targets that are not classes, against scikit-learn, scipy and numbers of scikit-survival."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.metrics.target_metrics import evaluate_target, target_metrics, uno_weights
from histobench.roi.predictions import TargetPredictions

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "studies"))
from target_coverage import Case, samples


def predictions(
    truth: np.ndarray, predicted: np.ndarray, kind: str = "regression", **more: Any
) -> TargetPredictions:
    truth, predicted = (np.asarray(x, dtype=float).reshape(len(truth), -1) for x in (truth, predicted))
    names = tuple(f"row-{k}" for k in range(len(truth)))
    columns = ("time", "event") if kind == "survival" else ("label",)
    return TargetPredictions(kind, columns, truth, ("p",), predicted, names, **more)


def numbers(n: int, *, seed: int = 0, rounded: bool = False) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = draw.normal(1e4, 2.0, size=n)  # far from 0: sums of squares lose digits there
    predicted = truth + draw.normal(size=n)
    return (truth.round(), predicted.round()) if rounded else (truth, predicted)


@pytest.mark.parametrize("rounded", [False, True])  # without ties, and with many
def test_metrics_of_numbers_are_those_of_other_packages(rounded: bool) -> None:
    truth, predicted = numbers(80, rounded=rounded)
    found = {name: score.value for name, score in target_metrics(predictions(truth, predicted)).items()}
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, predicted), rel=1e-9)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted), rel=1e-9)
    assert found["pearson"] == pytest.approx(stats.pearsonr(truth, predicted).statistic, rel=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(truth, predicted).statistic, rel=1e-9)


def test_counts_leave_rows_out_and_repeat_them() -> None:
    truth, predicted = numbers(30, rounded=True)
    counts = np.random.default_rng(1).integers(0, 3, size=(4, 30)).astype(np.int32)
    found = evaluate_target(predictions(truth, predicted))(counts)
    for row, count in enumerate(counts):
        drawn = truth.repeat(count), predicted.repeat(count)
        assert found["r2"][row] == pytest.approx(metrics.r2_score(*drawn), rel=1e-9)
        assert found["spearman"][row] == pytest.approx(stats.spearmanr(*drawn).statistic, rel=1e-9)


def test_a_metric_that_is_not_defined_says_why() -> None:
    found = target_metrics(predictions(np.ones(5), np.arange(5)))
    assert found["r2"].value is None
    assert "the same" in found["r2"].reason
    assert found["mae"].value == 1.4


def survival() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times with ties, and rounded risks of twenty test patients; the reference numbers are of these."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(60, 5)).round(3)
    lived = draw.exponential(np.exp(-x[:, 0] + 0.5 * x[:, 1]) * 10)
    censored = draw.exponential(12, size=60)
    time = np.minimum(lived, censored).round(1) + 0.1
    truth = np.stack([time, (lived <= censored).astype(float)], axis=1)
    weights = [0.27298188790338856, -0.24948690425443482, 0.020551817225121526, 0.14813752627378474,
               -0.02625066665034093]  # fmt: skip
    return truth[:40], truth[40:], (x[40:] @ weights).round(1)


def test_harrells_and_unos_c_are_those_of_scikit_survival() -> None:
    """scikit-survival 0.28.0: concordance_index_censored and concordance_index_ipcw."""
    train, test, risk = survival()
    found = target_metrics(predictions(test, risk, "survival", weights=uno_weights(train, test)))
    assert found["harrell_c"].value == pytest.approx(0.7478632478632479, rel=1e-12)
    assert found["uno_c"].value == pytest.approx(0.7864310376435624, rel=1e-12)


def test_events_after_all_training_times_have_no_weight() -> None:
    train = np.array([[1.0, 1], [2.0, 0], [3.0, 1], [4.0, 0]])
    test = np.array([[2.5, 1], [3.5, 1], [4.0, 1], [9.0, 1], [2.0, 0], [0.5, 1]])
    found = uno_weights(train, test)
    # Censored are 1 of 3 at 2 (who dies at 1 has left); at 4 the last one is.
    np.testing.assert_allclose(found, [1 / (2 / 3) ** 2, 1 / (2 / 3) ** 2, 0.0, 0.0, 0.0, 1.0])


def test_c_without_comparable_patients_says_why() -> None:
    test = np.array([[2.0, 0], [3.0, 0]])
    found = target_metrics(predictions(test, np.arange(2), "survival", weights=np.zeros(2)))
    assert found["harrell_c"].value is None
    assert "no two patients" in found["harrell_c"].reason


@pytest.mark.parametrize("rounded", [False, True])  # without ties, and with many
def test_areas_of_labels_are_those_of_scikit_learn(rounded: bool) -> None:
    draw = np.random.default_rng(2)
    truth = draw.random((60, 3)) < [0.2, 0.5, 0.7]
    said = (0.4 * truth + draw.random((60, 3))).round(1 if rounded else 8)
    names = tuple(f"row-{k}" for k in range(60))
    run = TargetPredictions(
        "multilabel", tuple("abc"), truth.astype(float), tuple("abc"), said, names, classes=tuple("abc")
    )
    counts = np.concatenate([np.ones((1, 60)), draw.integers(0, 3, size=(3, 60))]).astype(np.int32)
    found = evaluate_target(run)(counts)
    for row, count in enumerate(counts):
        t, p = truth.repeat(count, axis=0), said.repeat(count, axis=0)
        for short, score in (("auroc", metrics.roc_auc_score), ("ap", metrics.average_precision_score)):
            for mean in ("macro", "micro"):
                assert found[f"{mean}_{short}"][row] == pytest.approx(score(t, p, average=mean), rel=1e-9)
        assert found["auroc@1"][row] == pytest.approx(metrics.roc_auc_score(t[:, 1], p[:, 1]), rel=1e-9)


def test_metrics_of_levels_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(3)
    truth, said = draw.integers(0, 4, size=50), draw.random((50, 4))
    names = tuple(f"row-{k}" for k in range(50))
    levels = np.array([1.0, 2.0, 3.0, 5.0])
    run = TargetPredictions("ordinal", ("grade",), levels[truth][:, None], ("1", "2", "3", "5"), said, names)
    found = target_metrics(run)
    kappa = metrics.cohen_kappa_score(truth, said.argmax(axis=1), weights="quadratic")
    assert found["quadratic_kappa"].value == pytest.approx(kappa, rel=1e-9)
    error = metrics.mean_absolute_error(truth, said.argmax(axis=1))
    assert found["mae"].value == pytest.approx(error, rel=1e-9)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("regression", 40, 5, 1.0),
        Case("survival", 60, 1, 1.0, 0.5),
        Case("ordinal", 60, 1, 1.0),
        Case("multilabel", 60, 1, 1.0, 0.25),
    ],
    ids=lambda case: case.kind,
)
def test_intervals_hold_the_true_value_as_often_as_they_say(case: Case) -> None:
    held: dict[str, list[bool]] = {}
    for name, _, interval, truth in samples(case, 100, 0):
        if interval.low is not None and interval.high is not None:
            held.setdefault(name, []).append(interval.low <= truth <= interval.high)
    for name, each in held.items():
        assert len(each) > 90, name
        assert np.mean(each) >= 0.88, name


def test_a_rare_label_has_no_interval() -> None:
    draw = np.random.default_rng(0)
    truth = np.zeros((30, 2))
    truth[:15, 0] = truth[:4, 1] = 1
    names, groups = tuple(map(str, range(30))), tuple(map(str, np.arange(30) // 2))
    labels = ("EGFR", "KRAS")
    run = TargetPredictions("multilabel", labels, truth, labels, draw.random((30, 2)), names, groups)
    table = TargetTable.of({"a": run})
    assert table.intervals("auroc@0")["a"].low is not None
    assert table.intervals("auroc@1")["a"].reason == "too few groups with KRAS: 2 (an interval needs 3)"
    assert table.intervals("macro_auroc")["a"].low is None
    assert table.intervals("micro_auroc")["a"].low is not None


def test_a_precision_is_known_no_better_than_its_few_positives_allow() -> None:
    truth = np.zeros((80, 1))
    truth[:6] = 1
    names = tuple(map(str, range(80)))
    said = np.linspace(1.0, 0.0, 80)[:, None]
    table = TargetTable.of({"a": TargetPredictions("multilabel", ("EGFR",), truth, ("EGFR",), said, names)})
    found = {name: table.intervals(name)["a"].low for name in ("auprc@0", "macro_ap", "auroc@0")}
    at_most = 3 * 6 / (3 * 6 + 1.96**2)  # Wilson's bound of 18 of 18
    assert found["auprc@0"] < at_most
    assert found["macro_ap"] < at_most < found["auroc@0"]


def test_too_few_groups_have_no_interval() -> None:
    truth, said = numbers(12)
    table = TargetTable.of({"a": predictions(truth, said, groups=tuple("aaabbbcccddd"))})
    found = table.intervals("r2")["a"]
    assert found.low is None
    assert found.reason == "too few groups: 4 (an interval needs 5)"
