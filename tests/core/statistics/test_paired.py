"""The paired bootstrap: hand-made cases, a t-like closed form, coverage and false positives."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from histobench.statistics.intervals import Floats, bca_interval, percentile_interval
from histobench.statistics.resampling import (
    Metric,
    PairedDifference,
    SamplingDesign,
    bootstrap_p_value,
    draw_counts,
    jackknife_of_all,
    jackknife_strata,
    replicates,
    sampling_design,
    smallest_p_value,
)
from histobench.statistics.tests import holm


def mean_of(values: np.ndarray):
    return lambda counts: counts @ values / counts.sum(axis=1)


def paired_bootstrap(
    first: Metric,
    second: Metric,
    design: SamplingDesign,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    method: str = "percentile",
) -> PairedDifference:
    """Difference of a metric between two models, both evaluated on the same resamples."""

    def difference(counts: NDArray[np.int32]) -> Floats:
        return np.asarray(first(counts), dtype=np.float64) - np.asarray(second(counts), dtype=np.float64)

    observed = float(difference(np.ones((1, design.n_samples), dtype=np.int32))[0])
    resampled = replicates(difference, design, n_resamples=n_resamples, seed=seed)
    if method == "percentile":
        interval = percentile_interval(resampled, level=level)
    else:
        left_out = jackknife_of_all(lambda counts: {"": difference(counts)}, design)[""]
        interval = bca_interval(resampled, observed, left_out, strata=jackknife_strata(design), level=level)
    return PairedDifference(observed, interval, bootstrap_p_value(resampled, design))


def test_identical_models_have_no_difference() -> None:
    values = np.random.default_rng(0).random(50)
    result = paired_bootstrap(mean_of(values), mean_of(values), sampling_design(50), n_resamples=200)
    assert result.difference == 0
    assert (result.interval.low, result.interval.high) == (0, 0)
    assert result.p_value == 1


def test_the_difference_changes_sign_with_the_order_and_the_p_value_stays() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(80), generator.random(80)
    design = sampling_design(80)
    there = paired_bootstrap(mean_of(first), mean_of(second), design, n_resamples=500, seed=2)
    back = paired_bootstrap(mean_of(second), mean_of(first), design, n_resamples=500, seed=2)
    assert there.difference == pytest.approx(-back.difference)
    assert there.interval.low == pytest.approx(-back.interval.high)
    assert there.p_value == back.p_value


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_on_many_samples_it_agrees_with_the_paired_t_test(method: str) -> None:
    generator = np.random.default_rng(3)
    first = generator.normal(size=800)
    second = first + generator.normal(0.06, 0.8, size=800)
    ours = paired_bootstrap(
        mean_of(first), mean_of(second), sampling_design(800), n_resamples=20_000, seed=4, method=method
    )
    theirs = stats.ttest_rel(first, second)
    assert ours.difference == pytest.approx((first - second).mean())
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=0.01)
    low, high = theirs.confidence_interval(0.95)
    assert ours.interval.low == pytest.approx(low, abs=0.003)
    assert ours.interval.high == pytest.approx(high, abs=0.003)
    assert ours.interval.method == method


def test_pairing_removes_the_noise_that_both_models_share() -> None:
    generator = np.random.default_rng(5)
    shared = generator.normal(size=200)
    first, second = shared + generator.normal(0.1, 0.1, 200), shared
    result = paired_bootstrap(mean_of(first), mean_of(second), sampling_design(200), n_resamples=2000)
    assert result.p_value == pytest.approx(smallest_p_value(2000, sampling_design(200)))
    assert result.interval.low > 0


def test_p_value_counts_resamples_at_zero_to_both_sides() -> None:
    assert bootstrap_p_value(np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])) == pytest.approx(0.6)
    assert bootstrap_p_value(np.full(5, np.nan)) == 1


def test_few_units_make_the_p_value_larger_as_students_t_does() -> None:
    resampled = np.concatenate([np.full(30, -1.0), np.full(1969, 1.0)])
    plain, corrected = (bootstrap_p_value(resampled, d) for d in (None, sampling_design(10)))
    assert plain == pytest.approx(2 * 31 / 2000)
    assert corrected == pytest.approx(2 * stats.t.sf(stats.norm.isf(plain / 2) * np.sqrt(0.9), 9))
    assert bootstrap_p_value(resampled, sampling_design(100_000)) == pytest.approx(plain, rel=1e-3)
    assert bootstrap_p_value(resampled, sampling_design(1)) == 1


def test_p_value_below_alpha_and_interval_without_zero_say_the_same() -> None:
    generator = np.random.default_rng(6)
    for shift in np.linspace(-0.4, 0.4, 41):
        resampled = generator.normal(shift, 0.12, size=9999)
        p_value = bootstrap_p_value(resampled)
        if abs(p_value - 0.05) > 0.002:
            assert (p_value < 0.05) == (not percentile_interval(resampled).contains(0))


def correct_answers(generator: np.random.Generator, n_models: int, difficulty: np.ndarray) -> np.ndarray:
    """Models of equal skill that find the same samples hard (correctness [m, n])."""
    return (generator.random((n_models, len(difficulty))) < difficulty).astype(float)


@pytest.mark.slow
def test_95_percent_intervals_of_a_true_difference_cover_in_93_to_97_percent() -> None:
    generator = np.random.default_rng(7)
    n = 300
    counts = draw_counts(sampling_design(n), 1000, np.random.default_rng(8))
    covered = 0
    for _ in range(600):
        difficulty = generator.beta(3, 1, n)
        first = generator.random(n) < difficulty
        second = generator.random(n) < np.clip(difficulty - 0.1, 0, 1)
        truth = 0.75 - _mean_of_clipped()
        covered += percentile_interval(counts @ (first * 1.0 - second) / n).contains(truth)
    assert 0.93 <= covered / 600 <= 0.97


def _mean_of_clipped() -> float:
    # E[max(X - 0.1, 0)] of X ~ Beta(3, 1) with density 3x^2: integral of (x - 0.1) 3x^2 from 0.1 to 1
    return (3 / 4 - 0.1) - (3 / 4 * 0.1**4 - 0.1 * 0.1**3)


@pytest.mark.nightly
def test_on_null_data_any_corrected_claim_in_a_table_is_false_in_at_most_5_percent() -> None:
    generator = np.random.default_rng(9)
    n, n_models = 240, 5
    labels = np.repeat([0, 1, 2], [120, 80, 40])
    design = sampling_design(n, strata=labels)
    weights = 1 / (3 * np.bincount(labels)[labels])  # balanced accuracy is a weighted sum of correctness
    counts = draw_counts(design, 1999, np.random.default_rng(10)).astype(float)
    wrong_table = wrong_best = 0
    for _ in range(2000):
        correct = correct_answers(generator, n_models, generator.beta(3, 1, n))
        resampled = counts @ (correct * weights).T
        pairs = list(combinations(range(n_models), 2))
        adjusted = holm([bootstrap_p_value(resampled[:, a] - resampled[:, b], design) for a, b in pairs])
        best = int((correct @ weights).argmax())
        wrong_table += bool((adjusted <= 0.05).any())
        wrong_best += any(p <= 0.05 and best in pair for pair, p in zip(pairs, adjusted, strict=True))
    assert wrong_table / 2000 <= 0.05
    assert wrong_best / 2000 <= 0.05


@pytest.mark.slow
def test_on_null_data_with_patients_the_cluster_bootstrap_keeps_the_false_positives_down() -> None:
    generator = np.random.default_rng(11)
    patients = np.repeat(np.arange(60), 8)
    designs = {"patient": sampling_design(480, clusters=patients), "image": sampling_design(480)}
    counts = {k: draw_counts(d, 999, np.random.default_rng(12)).astype(float) for k, d in designs.items()}
    wrong = dict.fromkeys(designs, 0)
    for _ in range(500):
        # Each patient suits one model or the other: equal on average, not within a patient.
        taste = generator.normal(0, 0.15, 60)[patients]
        first = generator.random(480) < np.clip(0.75 + taste, 0, 1)
        second = generator.random(480) < np.clip(0.75 - taste, 0, 1)
        for name, design in designs.items():
            wrong[name] += bootstrap_p_value(counts[name] @ (first * 1.0 - second), design) <= 0.05
    assert 0.03 <= wrong["patient"] / 500 <= 0.06
    assert wrong["image"] / 500 > 0.1
