"""Count matrices of the bootstrap and of the jackknife, and percentile intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from histobench.statistics.intervals import percentile_interval
from histobench.statistics.resampling import (
    SamplingDesign,
    design_for_labels,
    draw_counts,
    jackknife_of_all,
    replicates_of_all,
    sampling_design,
)

LABELS = np.array([2, 0, 0, 2, 2, 5, 0, 5, 2, 2])
CLUSTERS = np.array(list("aabbbcdcee"))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_plain_counts_have_the_moments_of_a_multinomial() -> None:
    counts = draw_counts(sampling_design(20), 40_000, rng())
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.03)
    covariance = np.cov(counts.T)
    np.testing.assert_allclose(np.diag(covariance), 1 - 1 / 20, atol=0.05)
    np.testing.assert_allclose(covariance[~np.eye(20, dtype=bool)], -1 / 20, atol=0.03)


def test_stratified_counts_keep_every_class_size() -> None:
    counts = draw_counts(sampling_design(10, strata=LABELS), 500, rng())
    for label in np.unique(LABELS):
        members = label == LABELS
        assert (counts[:, members].sum(axis=1) == members.sum()).all()
        assert counts[:, members].max() > 1


def test_samples_of_a_cluster_are_drawn_together() -> None:
    counts = draw_counts(sampling_design(10, clusters=CLUSTERS), 500, rng())
    for cluster in np.unique(CLUSTERS):
        members = counts[:, cluster == CLUSTERS]
        assert (members == members[:, :1]).all()
    firsts = [int(np.flatnonzero(c == CLUSTERS)[0]) for c in np.unique(CLUSTERS)]
    assert (counts[:, firsts].sum(axis=1) == len(firsts)).all()


def test_stratified_clusters_keep_the_number_of_clusters_of_each_class() -> None:
    clusters, labels = np.array([0, 0, 1, 2, 2, 2, 3, 4]), np.array([1, 1, 1, 0, 0, 0, 0, 0])
    counts = draw_counts(sampling_design(8, strata=labels, clusters=clusters), 500, rng())
    assert (counts[:, [0, 2]].sum(axis=1) == 2).all()
    assert (counts[:, [3, 6, 7]].sum(axis=1) == 3).all()


def test_a_mixed_cluster_counts_to_its_most_frequent_class() -> None:
    design = sampling_design(5, strata=[0, 1, 1, 0, 0], clusters=[0, 0, 0, 1, 1])
    assert design.stratum_of.tolist() == [1, 0]


@given(
    n=st.integers(1, 30),
    n_resamples=st.integers(1, 40),
    budget=st.integers(1, 20_000),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_memory_budget_does_not_change_the_draws(
    n: int, n_resamples: int, budget: int, seed: int
) -> None:
    design = sampling_design(n, strata=np.arange(n) % 3)
    whole = draw_counts(design, n_resamples, rng(seed))
    rows = replicates_of_all(
        lambda counts: {"": counts}, design, n_resamples=n_resamples, seed=seed, memory=budget
    )[""]
    np.testing.assert_array_equal(rows, whole)


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        (None, "stratified"),
        ("aabcdd", "stratified cluster"),  # groups of one class each
        ("aabbbb", "cluster"),
        ("aabccc", "cluster"),
        ("abcabc", "cluster"),
    ],
)
def test_what_is_drawn_follows_from_classes_and_groups(groups: str | None, kind: str) -> None:
    assert design_for_labels([0, 0, 0, 1, 1, 1], groups and list(groups)).kind == kind


def jackknife_counts(design: SamplingDesign, **options: int) -> np.ndarray:
    return jackknife_of_all(lambda counts: {"": counts}, design, **options)[""]


def test_the_jackknife_leaves_out_each_unit_once() -> None:
    counts = jackknife_counts(sampling_design(10, clusters=CLUSTERS))
    assert counts.shape == (5, 10)
    assert (counts.sum(axis=0) == 4).all()


def test_many_units_are_left_out_in_equal_blocks() -> None:
    counts = jackknife_counts(sampling_design(1000), max_blocks=100)
    assert len(counts) == 100
    assert ((1 - counts).sum(axis=0) == 1).all()
    assert ((1 - counts).sum(axis=1) == 10).all()


def test_degrees_of_freedom_are_those_of_the_units_and_of_welch_over_strata() -> None:
    assert sampling_design(12).degrees_of_freedom == pytest.approx(11)
    assert sampling_design(12, clusters=np.arange(12) // 3).degrees_of_freedom == pytest.approx(3)
    equal = sampling_design(40, strata=np.arange(40) % 4)
    assert equal.degrees_of_freedom == pytest.approx(36)
    assert sampling_design(2, strata=[0, 1]).degrees_of_freedom == 0


def test_percentile_interval_is_scipys() -> None:
    sample = np.random.default_rng(0).exponential(size=40)
    reference = stats.bootstrap(
        (sample,), np.mean, n_resamples=999, method="percentile", rng=np.random.default_rng(1)
    )
    ours = percentile_interval(reference.bootstrap_distribution)
    assert ours.low == pytest.approx(reference.confidence_interval.low)
    assert ours.high == pytest.approx(reference.confidence_interval.high)


@pytest.mark.parametrize(
    ("defined", "n_valid", "reason"),
    [
        (3, 3, "undefined on 1 of 4 resamples, which were left out"),
        (1, 1, "the metric is defined on only 1 of 4 resamples"),
        (0, 0, "the metric is defined on only 0 of 4 resamples"),
    ],
)
def test_undefined_resamples_are_left_out_and_named(defined: int, n_valid: int, reason: str) -> None:
    interval = percentile_interval(np.where(np.arange(4) < defined, np.arange(4.0), np.nan))
    assert (interval.n_valid, interval.reason) == (n_valid, reason)
    assert (interval.low is None) == (defined < 2)
    assert interval.contains(1.0)
