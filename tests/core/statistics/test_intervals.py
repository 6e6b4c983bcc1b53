"""Percentile and BCa intervals against scipy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histobench.statistics.intervals import (
    acceleration_of,
    bca_interval,
    percentile_interval,
)
from histobench.statistics.resampling import (
    Metric,
    SamplingDesign,
    draw_counts,
    jackknife_of_all,
    jackknife_strata,
    sampling_design,
)


def jackknife(metric: Metric, design: SamplingDesign, *, max_blocks: int = 1000) -> np.ndarray:
    return jackknife_of_all(lambda counts: {"": metric(counts)}, design, max_blocks=max_blocks)[""]


def test_percentile_interval_is_scipys() -> None:
    sample = np.random.default_rng(0).exponential(size=40)
    reference = stats.bootstrap(
        (sample,), np.mean, n_resamples=999, method="percentile", rng=np.random.default_rng(1)
    )
    ours = percentile_interval(reference.bootstrap_distribution)
    assert ours.low == pytest.approx(reference.confidence_interval.low)
    assert ours.high == pytest.approx(reference.confidence_interval.high)


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("statistic", ["mean", "variance"])
def test_bca_interval_is_scipys(level: float, statistic: str) -> None:
    sample = np.random.default_rng(2).exponential(size=35)
    function = np.mean if statistic == "mean" else np.var
    reference = stats.bootstrap(
        (sample,),
        function,
        n_resamples=1999,
        method="BCa",
        confidence_level=level,
        rng=np.random.default_rng(3),
    )

    def metric(counts: np.ndarray) -> np.ndarray:
        total = counts.sum(axis=1)
        mean = counts @ sample / total
        return mean if statistic == "mean" else counts @ sample**2 / total - mean**2

    ours = bca_interval(
        reference.bootstrap_distribution,
        float(function(sample)),
        jackknife(metric, sampling_design(len(sample))),
        level=level,
    )
    assert ours.method == "bca"
    assert ours.low == pytest.approx(reference.confidence_interval.low, rel=1e-9)
    assert ours.high == pytest.approx(reference.confidence_interval.high, rel=1e-9)


def test_bca_interval_of_two_strata_is_scipys_of_two_samples() -> None:
    generator = np.random.default_rng(4)
    first, second = generator.exponential(size=30), generator.exponential(2, size=18)
    reference = stats.bootstrap(
        (first, second),
        lambda x, y, axis=-1: x.mean(axis=axis) - y.mean(axis=axis),
        n_resamples=1999,
        method="BCa",
        rng=np.random.default_rng(5),
    )
    design = sampling_design(48, strata=np.repeat([0, 1], [30, 18]))

    def metric(counts: np.ndarray) -> np.ndarray:
        left, right = counts[:, :30], counts[:, 30:]
        return left @ first / left.sum(axis=1) - right @ second / right.sum(axis=1)

    ours = bca_interval(
        reference.bootstrap_distribution,
        first.mean() - second.mean(),
        jackknife(metric, design),
        strata=jackknife_strata(design),
    )
    assert ours.low == pytest.approx(reference.confidence_interval.low, rel=1e-9)
    assert ours.high == pytest.approx(reference.confidence_interval.high, rel=1e-9)


def test_acceleration_of_the_mean_is_its_skewness_over_six_root_n() -> None:
    sample = np.random.default_rng(6).exponential(size=200)
    left_out = (sample.sum() - sample) / 199
    expected = stats.skew(sample) / (6 * np.sqrt(200))
    assert acceleration_of(left_out) == pytest.approx(expected)


def test_acceleration_from_blocks_is_near_that_from_single_units() -> None:
    sample = np.random.default_rng(7).exponential(size=20_000)
    design = sampling_design(len(sample))

    def mean(counts: np.ndarray) -> np.ndarray:
        return counts @ sample / counts.sum(axis=1)

    blocks = acceleration_of(jackknife(mean, design, max_blocks=2000))
    assert blocks == pytest.approx(stats.skew(sample) / (6 * np.sqrt(20_000)), rel=0.3)


def test_undefined_resamples_are_left_out_and_named() -> None:
    interval = percentile_interval(np.array([np.nan, 1.0, 2.0, 3.0]))
    assert interval.n_valid == 3
    assert interval.reason == "undefined on 1 of 4 resamples, which were left out"


def test_without_defined_resamples_there_are_no_bounds_but_a_reason() -> None:
    for interval in (
        percentile_interval(np.full(10, np.nan)),
        bca_interval(np.full(10, np.nan), 0.5, np.ones(4)),
    ):
        assert (interval.low, interval.high) == (None, None)
        assert interval.reason == "the metric is defined on only 0 of 10 resamples"
        assert interval.contains(3.0)


def test_bca_falls_back_to_percentile_and_says_why() -> None:
    values = np.linspace(0, 1, 101)
    outside = bca_interval(values, 2.0, np.arange(5.0))
    assert outside.method == "percentile"
    assert "outside its own resamples" in str(outside.reason)
    undefined = bca_interval(values, 0.5, np.array([0.1, np.nan]))
    assert undefined.method == "percentile"
    assert "left out" in str(undefined.reason)


def balanced_accuracy(correct: np.ndarray, labels: np.ndarray):
    """A weighted balanced accuracy, written independently of the package's metrics."""

    def metric(counts: np.ndarray) -> np.ndarray:
        recalls = [
            counts[:, labels == c] @ correct[labels == c] / counts[:, labels == c].sum(axis=1)
            for c in np.unique(labels)
        ]
        return np.mean(recalls, axis=0)

    return metric


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_stratified_95_percent_intervals_cover_in_93_to_97_percent_of_simulated_test_sets(
    method: str,
) -> None:
    generator = np.random.default_rng(11)
    labels = np.repeat([0, 1, 2], [120, 80, 100])
    recall = np.array([0.7, 0.8, 0.6])
    design = sampling_design(len(labels), strata=labels)
    counts = draw_counts(design, 600, np.random.default_rng(12))
    covered = []
    for _ in range(600):
        correct = (generator.random(len(labels)) < recall[labels]).astype(float)
        metric = balanced_accuracy(correct, labels)
        values = metric(counts)
        if method == "percentile":
            interval = percentile_interval(values)
        else:
            estimate = float(metric(np.ones((1, len(labels))))[0])
            interval = bca_interval(
                values, estimate, jackknife(metric, design), strata=jackknife_strata(design)
            )
        covered.append(interval.contains(float(recall.mean())))
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.nightly
def test_cluster_intervals_cover_where_image_intervals_do_not() -> None:
    generator = np.random.default_rng(13)
    n_patients, per_patient = 60, 10
    clusters = np.repeat(np.arange(n_patients), per_patient)
    by_patient = draw_counts(sampling_design(600, clusters=clusters), 800, np.random.default_rng(14))
    by_image = draw_counts(sampling_design(600), 800, np.random.default_rng(15))
    covered = {"patient": 0, "image": 0}
    for _ in range(1000):
        patient_accuracy = generator.beta(4, 1, n_patients)  # mean 0.8, differs between patients
        correct = (generator.random(600) < patient_accuracy[clusters]).astype(float)
        for name, counts in (("patient", by_patient), ("image", by_image)):
            interval = percentile_interval(counts @ correct / 600)
            covered[name] += interval.contains(0.8)
    assert 0.93 <= covered["patient"] / 1000 <= 0.97
    assert covered["image"] / 1000 < 0.9
