"""Default intervals: which procedure each metric gets, against loops and closed forms; why some have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats
from statsmodels.stats.proportion import proportion_confint

from histobench.roi.comparison import metric_intervals
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.metrics.metric_catalogue import METRICS
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import Interval


def _predictions(
    n: int = 120, c: int = 3, *, groups: int = 0, skill: float = 1.0, seed: int = 0
) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(c), rng.integers(0, c, n - c)])
    group = rng.permutation(np.arange(n) % max(groups, 1))
    shift = rng.normal(size=(max(groups, 1), c))[group] if groups else 0.0
    p = np.exp(rng.normal(size=(n, c)) + skill * np.eye(c)[labels] + shift)
    p /= p.sum(axis=1, keepdims=True)
    return Predictions(
        probabilities=p,
        labels=labels,
        predicted=p.argmax(axis=1),
        classes=tuple("abcdefghi"[:c]),
        img_names=tuple(map(str, range(n))),
        groups=tuple(f"p{k}" for k in group) if groups else None,
    )


def run_metric_intervals(run: Predictions) -> dict[str, Interval]:
    return metric_intervals.run_metric_intervals(run)[1]


def test_accuracy_and_recall_over_images_are_wilsons() -> None:
    run = _predictions()
    found = run_metric_intervals(run)
    right = run.predicted == run.labels
    expected = proportion_confint(right.sum(), len(run), method="wilson")
    for name in ("accuracy", "micro_f1", "weighted_recall"):
        assert (found[name].low, found[name].high) == pytest.approx(expected)
    of_class = run.labels == 1
    expected = proportion_confint(right[of_class].sum(), of_class.sum(), method="wilson")
    assert (found["recall@1"].low, found["recall@1"].high) == pytest.approx(expected)


@pytest.mark.slow
def test_over_groups_the_interval_is_the_jackknife_written_out() -> None:
    run = _predictions(groups=14)
    found = run_metric_intervals(run)
    patients = np.array(run.groups)
    names = np.unique(patients)
    rarest = min(len(np.unique(patients[run.labels == k])) for k in range(3))

    def metric(keep: np.ndarray, name: str) -> float:
        whole = np.ones((1, keep.sum()), dtype=int)
        return float(evaluate_resamples(run.probabilities[keep], run.labels[keep], whole)[name][0])

    for name, forward, back in (
        ("f1_score", special.logit, special.expit),
        ("auroc", special.logit, special.expit),
        ("mcc", np.arctanh, np.tanh),
        ("log_loss", np.log, np.exp),
        ("macro_auprc", special.logit, special.expit),
    ):
        value = forward(metric(np.ones(len(run), dtype=bool), name))
        without = np.array([forward(metric(patients != patient, name)) for patient in names])
        pull = without.mean() - without
        error = np.sqrt((len(names) - 1) / len(names) * (pull**2).sum())
        moments = 2 / ((pull**4).sum() / (pull**2).sum() ** 2 - 1 / len(names))
        loss = name == "log_loss"
        base = stats.t.ppf(0.975, rarest - 1 - loss)
        both = max(base, stats.t.ppf(0.975, np.clip(moments, 3, 13)))
        skewness = (pull**3).sum() / (pull**2).sum() ** 1.5
        long = max(
            both, base + (1.5 if loss else 1) * abs(skewness) * (1 + 2 * stats.t.ppf(0.975, 13) ** 2) / 6
        )
        bias = (len(names) - 1) * (without.mean() - value) if name == "macro_auprc" else 0.0
        low = back(value - error * (long if skewness < 0 else both) - max(bias, 0))
        high = back(value + error * (long if skewness > 0 else both) + max(-bias, 0))
        assert (found[name].low, found[name].high) == pytest.approx((low, high)), name


@pytest.mark.slow
def test_no_interval_has_no_width_even_where_nothing_is_wrong() -> None:
    for groups in (0, 12):
        run = _predictions(60, 3, groups=groups)
        sure = np.full((60, 3), 0.005) + 0.985 * np.eye(3)[run.labels]
        perfect = replace(run, probabilities=sure, predicted=run.labels)
        for name, interval in run_metric_intervals(perfect).items():
            if interval.low is not None and interval.high is not None:
                assert interval.high - interval.low > 0.01 or name in ("log_loss", "brier"), name
        assert run_metric_intervals(perfect)["balanced_accuracy"].high == 1.0


def test_a_perfect_score_of_groups_promises_less_than_one_of_as_many_single_images() -> None:
    single, grouped = (
        run_metric_intervals(replace(run, predicted=run.labels))["accuracy"].low
        for run in (_predictions(60), _predictions(60, groups=12))
    )
    assert grouped is not None
    assert single is not None
    assert grouped < single


def test_too_few_groups_are_said_and_not_guessed_from() -> None:
    assert "too few groups: 4" in str(run_metric_intervals(_predictions(groups=4))["accuracy"].reason)
    run = _predictions(groups=20)
    labels = np.where(np.array(run.groups) == "p0", 2, run.labels % 2)
    found = run_metric_intervals(replace(run, labels=labels))
    assert "too few groups of class c: 1" in str(found["balanced_accuracy"].reason)
    assert found["accuracy"].low is not None


@pytest.mark.parametrize("mistakes", [0, 1, 2])
def test_a_loss_over_groups_without_mistakes_has_no_interval_and_says_why(mistakes: int) -> None:
    """What a mistake costs was not seen; with single images the interval holds all the same."""
    grouped, single = (_predictions(60, 3, groups=groups) for groups in (12, 0))
    for run in (grouped, single):
        predicted = run.labels.copy()
        predicted[:mistakes] = (predicted[:mistakes] + 1) % 3
        sure = np.full((60, 3), 0.005) + 0.985 * np.eye(3)[predicted] + 0.001 * run.probabilities
        run = replace(run, probabilities=sure / sure.sum(axis=1, keepdims=True), predicted=predicted)
        found = run_metric_intervals(run)
        for metric in ("log_loss", "brier"):
            few = run.groups is not None and mistakes < 2
            assert (found[metric].low is None) == few
            assert few == (f"too few mistakes: {mistakes}" in str(found[metric].reason))
        assert found["accuracy"].low is not None


def test_calibration_errors_have_no_interval_and_say_why() -> None:
    found = run_metric_intervals(_predictions())
    assert found["ece"].low is None
    assert "no interval" in str(found["ece"].reason)


def test_with_two_classes_every_area_has_one_interval() -> None:
    for groups in (0, 10):
        found = run_metric_intervals(_predictions(c=2, groups=groups))
        areas = {(found[name].low, found[name].high) for name in METRICS if "auroc" in name}
        assert len(areas) == 1


def test_the_order_of_the_images_does_not_matter() -> None:
    run = _predictions(groups=9)
    order = np.random.default_rng(5).permutation(len(run))
    other = Predictions(
        run.probabilities[order], run.labels[order], run.predicted[order], run.classes, run.img_names,
        tuple(run.groups[k] for k in order) if run.groups else None,
    )  # fmt: skip
    first, second = run_metric_intervals(run), run_metric_intervals(other)
    for name, interval in first.items():
        assert (second[name].low, second[name].high) == pytest.approx((interval.low, interval.high)), name


@pytest.mark.slow
def test_every_interval_holds_its_value_and_stays_in_range() -> None:
    for run in (_predictions(), _predictions(groups=6), _predictions(40, 2, skill=4.0), _predictions(50, 9)):
        whole = np.ones((1, len(run)), dtype=int)
        values = evaluate_resamples(run.probabilities, run.labels, whole, by_class=True)
        for name, interval in run_metric_intervals(run).items():
            if interval.low is None or interval.high is None:
                assert interval.reason
                continue
            assert interval.low <= values[name][0] <= interval.high, name
            assert interval.low >= (-1 if "kappa" in name or name == "mcc" else 0), name
            assert interval.high <= (2 if name == "brier" else 1) or name == "log_loss", name
