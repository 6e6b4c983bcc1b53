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
from histobench.roi.comparison.bootstrap_intervals import over_all_classes
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_intervals import all_metrics, one_metric
from histobench.roi.comparison.sampling_units import SamplingUnits, taken
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.metrics.metric_catalogue import CLASS_MEANS, METRICS, metric_of
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
        units = SamplingUnits.of(run)
        columns = left_out_table({"run": run}, list(widths), units)
        for name, values in widths.items():
            found = metric_intervals.metric_intervals(name, columns[name], units)["run"]
            low, high = found.low, found.high
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


def test_too_few_groups_or_images_are_said_and_the_fewest_are_enough() -> None:
    run, whole = _predictions(groups=20), np.arange(120)

    def reason(runs: Predictions, metric: str) -> str:
        return run_metric_intervals(runs)[metric].reason or ""

    for count, said in ((4, "too few groups: 4"), (5, "")):
        assert reason(_predictions(groups=count), "accuracy").startswith(said)
        assert bool(reason(_predictions(groups=count), "accuracy")) == bool(said)
    for count, said in ((2, "too few groups of class c: 2 (an interval needs 3)"), (3, "")):
        rare = np.isin(run.groups, [f"p{k}" for k in range(count)])
        of_groups = replace(run, labels=np.where(rare, whole % 3, whole % 2))
        assert (reason(of_groups, "balanced_accuracy"), reason(of_groups, "accuracy")) == (said, "")
    for count, said in ((4, "too few images of class c: 4 (an interval needs 5)"), (5, "")):
        of_images = replace(_predictions(), labels=np.where(whole < count, 2, whole % 2))
        assert reason(of_images, "auprc@2") == said


def test_an_interval_is_on_the_scale_and_of_the_images_of_its_metric() -> None:
    run = _predictions(skill=0.0)
    wrong = replace(run, probabilities=0.02 + 0.94 * np.eye(3)[(run.labels + 1) % 3])
    found = run_metric_intervals(run)["mcc"], run_metric_intervals(wrong)["brier"]
    assert -1 < found[0].low < 0 < found[0].high < 1
    assert 1 < found[1].low < found[1].high < 2
    two = run_metric_intervals(_predictions(c=2, groups=12))  # every area is that of class 1
    for kind in ("auroc", "auprc"):
        names = [name for name in METRICS if metric_of(name).kind == kind and two[name].low]
        assert len(names) > 2
        assert len({(two[name].low, two[name].high) for name in names}) == 1
    # The recall of a class is the accuracy on its images, of which one patient has most.
    many = _predictions(400, groups=14)
    first = np.array(many.groups) == "p0"
    many = replace(
        many, labels=np.where(first, 2, np.where(many.labels == 2, many.predicted % 2, many.labels))
    )
    rest = np.flatnonzero(~first)[:60]
    many.labels[rest] = 2
    recall = run_metric_intervals(many)["recall@2"]
    accuracy = run_metric_intervals(taken(many, np.flatnonzero(many.labels == 2)))["accuracy"]
    assert (recall.low, recall.high) == pytest.approx((accuracy.low, accuracy.high), abs=0.01)


@pytest.mark.slow
def test_every_interval_holds_its_value_has_a_width_and_stays_in_range() -> None:
    perfect = [_predictions(60, 3, groups=groups) for groups in (0, 12)]
    perfect = [
        replace(run, probabilities=0.005 + 0.985 * np.eye(3)[run.labels], predicted=run.labels)
        for run in perfect
    ]
    drawn = [_predictions(), _predictions(groups=6), _predictions(40, 2, skill=4.0), _predictions(50, 9)]
    for run in (*perfect, *drawn):
        whole = np.ones((1, len(run)), dtype=int)
        values = evaluate_resamples(run.probabilities, run.labels, whole, by_class=True)
        for name, interval in run_metric_intervals(run).items():
            if interval.low is None or interval.high is None:
                assert interval.reason
                continue
            assert interval.low <= values[name][0] + 1e-9, name
            assert interval.high >= values[name][0] - 1e-9, name
            assert interval.high - interval.low > 0.01 or name in ("log_loss", "brier"), name
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


@pytest.mark.slow
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


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(0).multinomial(150, np.full(150, 1 / 150), size=7).astype(np.int32)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "mcc", "log_loss"])
def test_one_metric_is_that_of_all(metric: str, counts: np.ndarray) -> None:
    run = _predictions(150)
    np.testing.assert_allclose(one_metric(run, metric)(counts), all_metrics(run)(counts)[metric])


def test_means_over_classes_are_undefined_where_a_class_is_lost_and_unchanged_elsewhere() -> None:
    labels, names = np.array([0, 1] * 20 + [2] * 6), tuple(map(str, range(46)))
    scores = np.random.default_rng(0).dirichlet([1, 1, 1], 46)
    predictions = Predictions(scores, labels, scores.argmax(1), ("a", "b", "rare"), names)
    counts = np.random.default_rng(1).integers(0, 3, (40, 46)).astype(np.int32)
    counts[::2, 40:] = 0  # every other resample has no image of the rare class
    plain = all_metrics(predictions)(counts)
    whole = over_all_classes(all_metrics(predictions), predictions.labels)(counts)
    for name, values in plain.items():
        expected = values.copy()
        if name in CLASS_MEANS:
            assert np.isfinite(values[::2]).all()  # a mean over two classes of three
            expected[::2] = np.nan
        np.testing.assert_array_equal(whole[name], expected, name)
