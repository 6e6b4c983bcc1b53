"""Default intervals: which procedure each metric gets, against loops and closed forms; why some have none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from builders import examples
from histobench.roi.comparison import metric_intervals
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import wilson_bounds


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
    run = _predictions(600)
    found = run_metric_intervals(run)
    right = run.predicted == run.labels
    expected = proportion_confint(right.sum(), len(run), method="wilson")
    for name in ("accuracy", "micro_f1", "weighted_recall"):
        assert (found[name].low, found[name].high) == pytest.approx(expected, abs=1e-3)
    of_class = run.labels == 1
    expected = proportion_confint(right[of_class].sum(), of_class.sum(), method="wilson")
    assert (found["recall@1"].low, found["recall@1"].high) == pytest.approx(expected, abs=3e-3)


def test_over_groups_the_interval_is_the_rule_written_out() -> None:
    """Of accuracy: the jackknife on its own scale, a bunch of unseen mistakes, Wilson's interval with t."""
    run = _predictions(groups=14)
    patients = np.array(run.groups)
    hard = np.isin(patients, np.unique(patients)[:2])  # mistakes come together
    run = replace(run, predicted=np.where(hard, (run.labels + 1) % run.n_columns, run.predicted))
    found, wrong = run_metric_intervals(run)["accuracy"], run.predicted != run.labels
    sizes = np.array([np.sum(patients == name) for name in np.unique(patients)])
    errors = np.array([wrong[patients == name].sum() for name in np.unique(patients)])
    n, x = sizes.sum(), errors.sum()
    without = 1 - (x - errors) / (n - sizes)
    pull = np.sqrt(13 / 14) * (without.mean() - without)
    assumed = 1 + 0.05 * ((sizes**2).sum() / n - 1)
    measured = (((errors - sizes * x / n) ** 2).sum() + assumed) / (x * (1 - x / n) + 1)
    move = 0.75 * max(assumed, measured) / n
    fourth = (pull**4).sum() / (pull**2).sum() ** 2
    by_size, shown = sizes.sum() ** 2 / (sizes**2).sum() - 1, 2 / (fourth - 1 / 14)
    seen, unseen = (pull**2).sum(), 2 * move**2
    shown = np.clip(min(shown, by_size), 3, 13)
    degrees = (seen + unseen) / (seen / shown + unseen / 13)
    moved = x / n - 2 * move  # most images are wrong: some turn right
    worth = moved * (1 - moved) / (1.1 * seen + unseen)
    assert x > n / 2
    assert worth < n
    expected = wilson_bounds(1 - x / n, worth, stats.t.ppf(0.975, degrees))
    assert (found.low, found.high) == pytest.approx(tuple(map(float, expected)))


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


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 10**6), st.integers(12, 40), st.integers(4, 12), st.sampled_from([2, 3]), st.booleans(),
    st.integers(1, 6),
)  # fmt: skip
def test_more_mistakes_do_not_narrow_an_interval(
    seed: int, groups: int, size: int, c: int, grouped: bool, bunch: int
) -> None:
    """A better encoder has no wider interval than one with the same mistakes and more like them.

    Mistakes come in bunches of one size: some in further patients, then one more in each of these patients.
    """
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    labels = np.tile(np.arange(size) % c, groups)
    patients, first, bunch = rng.permutation(groups), rng.integers(0, size), min(bunch, size // 2)
    widths: dict[str, list[float]] = {"accuracy": [], "balanced_accuracy": [], "f1_score": []}
    counts = sorted(rng.integers(0, groups // 2, 3))
    for count, together in [*((count, bunch) for count in counts), (counts[-1], bunch + 1)]:
        predicted = labels.copy().reshape(groups, size)
        images = (first + np.arange(together)) % size
        predicted[np.ix_(patients[:count], images)] += 1
        predicted = predicted.ravel() % c
        p = np.where(np.eye(c)[predicted] == 1, 0.9, 0.1 / max(c - 1, 1))
        names = tuple(map(str, range(len(group))))
        of_image = tuple(map(str, group)) if grouped else None
        run = Predictions(p, labels, predicted, tuple("abc"[:c]), names, of_image)
        found = run_metric_intervals(run)
        for name, values in widths.items():
            low, high = found[name].low, found[name].high
            if low is not None and high is not None:
                values.append(high - low)
    for name, values in widths.items():
        for better, worse in pairwise(values):
            assert better <= worse + 1e-9, name


def test_more_groups_like_these_narrow_the_interval() -> None:
    run = _predictions(240, groups=20)
    twice = Predictions(
        np.tile(run.probabilities, (2, 1)), np.tile(run.labels, 2), np.tile(run.predicted, 2), run.classes,
        tuple(map(str, range(480))), (*run.groups, *(f"other {name}" for name in run.groups)),
    )  # fmt: skip
    once, more = run_metric_intervals(run), run_metric_intervals(twice)
    for name, interval in once.items():
        if interval.low is not None and interval.high is not None:
            assert more[name].high - more[name].low < 0.85 * (interval.high - interval.low), name


def test_another_encoder_in_the_table_does_not_change_an_interval() -> None:
    runs = {name: _predictions(groups=12, skill=skill, seed=1) for name, skill in (("a", 1.0), ("b", 2.0))}
    units = SamplingUnits.of(runs["a"])
    for metric in ("balanced_accuracy", "accuracy", "f1_score", "mcc", "auroc", "log_loss"):
        together = left_out_table(runs, [metric], units)[metric]
        alone = left_out_table({"a": runs["a"]}, [metric], units)[metric]
        stored = run_metric_intervals(runs["a"])[metric]
        intervals = [
            metric_intervals.metric_intervals(metric, found, units)["a"] for found in (together, alone)
        ]
        for interval in intervals:
            assert (interval.low, interval.high) == pytest.approx((stored.low, stored.high), abs=1e-12)


def test_too_few_groups_are_said_and_not_guessed_from() -> None:
    assert "too few groups: 4" in str(run_metric_intervals(_predictions(groups=4))["accuracy"].reason)
    run = _predictions(groups=20)
    labels = np.where(np.array(run.groups) == "p0", 2, run.labels % 2)
    found = run_metric_intervals(replace(run, labels=labels))
    assert "too few groups of class c: 1" in str(found["balanced_accuracy"].reason)
    assert found["accuracy"].low is not None


def test_calibration_errors_have_no_interval_and_say_why() -> None:
    found = run_metric_intervals(_predictions())
    assert found["ece"].low is None
    assert "no interval" in str(found["ece"].reason)


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


@pytest.mark.parametrize(("n", "skill"), [(203, 0.6), (203, 1.6), (83, 1.2)])
def test_both_ends_of_an_area_are_near_those_of_delong(n: int, skill: float) -> None:
    rng = np.random.default_rng(n)
    labels = (rng.random(n) < 0.3).astype(int)
    score = 1 / (1 + np.exp(-rng.normal(size=n) - skill * labels))
    run = replace(
        _predictions(n, 2),
        labels=labels,
        probabilities=np.stack([1 - score, score], axis=1),
        predicted=(score > 0.5).astype(int),
    )
    found = run_metric_intervals(run)["auroc"]
    wins = (score[labels == 1][:, None] > score[labels == 0]).astype(float)
    area = wins.mean()
    error = np.sqrt(sum(wins.mean(axis=axis).var(ddof=1) / wins.shape[1 - axis] for axis in (0, 1)))
    odds = np.log(area / (1 - area)) + 1.96 * np.array([-1, 1]) * error / (area * (1 - area))
    assert (found.low, found.high) == pytest.approx(tuple(1 / (1 + np.exp(-odds))), abs=0.03)


def test_an_area_of_seven_images_in_twelve_patients_holds_the_truth() -> None:
    """Scores of two normal distributions with patient effects, of known area; most samples are perfect."""
    rng = np.random.default_rng(11)
    group, distance, held = np.repeat(np.arange(12), 60), 3.5, 0
    for _ in range(120):
        labels = np.zeros(720, dtype=int)
        labels[rng.choice(12, 7, replace=False) * 60] = 1
        effect = rng.normal(size=(2, 12))[labels, group]
        score = distance * labels + 0.5 * effect + 0.75**0.5 * rng.normal(size=720)
        p = 1 / (1 + np.exp(-score))
        run = Predictions(np.stack([1 - p, p], axis=1), labels, (p > 0.5).astype(int), ("a", "b"),
                          tuple(map(str, range(720))), tuple(map(str, group)))  # fmt: skip
        units = SamplingUnits.of(run)
        found = left_out_table({"run": run}, ["auroc"], units)["auroc"]
        held += metric_intervals.metric_intervals("auroc", found, units)["run"].contains(
            float(stats.norm.cdf(distance / 2**0.5))
        )
    assert held >= 0.92 * 120
