"""Count matrices of the bootstrap and of the jackknife."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.statistics.resampling import (
    design_for_labels,
    draw_counts,
    iterate_counts,
    jackknife_counts,
    jackknife_of_all,
    jackknife_strata,
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
    chunks = list(iterate_counts(design, n_resamples, seed=seed, memory_budget=budget))
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


def test_equal_seeds_give_equal_resamples_and_other_seeds_others() -> None:
    design = sampling_design(30)
    weights = np.arange(30.0)
    first, again, other = (
        replicates_of_all(lambda c: {"sum": c @ weights}, design, n_resamples=20, seed=seed)["sum"]
        for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_all_metrics_are_evaluated_on_the_same_resamples() -> None:
    design, weights = sampling_design(30), np.arange(30.0)
    both = replicates_of_all(
        lambda c: {"sum": c @ weights, "twice": 2 * (c @ weights)}, design, n_resamples=20, seed=1
    )
    np.testing.assert_array_equal(both["twice"], 2 * both["sum"])


def test_images_are_drawn_within_classes_when_there_are_no_groups() -> None:
    assert design_for_labels(LABELS).kind == "stratified"


def test_groups_of_one_class_each_are_drawn_within_classes() -> None:
    design = design_for_labels([0, 0, 0, 1, 1, 1], ["a", "a", "b", "c", "d", "d"])
    assert design.kind == "stratified cluster"


@pytest.mark.parametrize("groups", [list("aabbbb"), list("aabccc"), list("abcabc")])
def test_mixed_groups_or_a_class_of_one_group_are_not_stratified(groups: list[str]) -> None:
    assert design_for_labels([0, 0, 0, 1, 1, 1], groups).kind == "cluster"


def test_the_jackknife_leaves_out_each_unit_once() -> None:
    counts = np.concatenate(list(jackknife_counts(sampling_design(10, clusters=CLUSTERS))))
    assert counts.shape == (5, 10)
    assert (counts.sum(axis=0) == 4).all()


def test_the_jackknife_of_the_mean_is_the_mean_without_each_value() -> None:
    values = rng(3).normal(size=12)
    left_out = jackknife_of_all(lambda c: {"mean": (c @ values) / c.sum(axis=1)}, sampling_design(12))["mean"]
    np.testing.assert_allclose(left_out, [np.delete(values, i).mean() for i in range(12)])


def test_many_units_are_left_out_in_blocks_within_strata() -> None:
    labels = np.repeat([0, 1], [700, 300])
    design = sampling_design(1000, strata=labels)
    counts = np.concatenate(list(jackknife_counts(design, max_blocks=100)))
    strata = jackknife_strata(design, max_blocks=100)
    assert len(counts) == len(strata) == 100
    assert ((1 - counts).sum(axis=0) == 1).all()
    for row, stratum in zip(counts, strata, strict=True):
        assert set(labels[row == 0]) == {stratum}
        assert (row == 0).sum() == 10


def test_degrees_of_freedom_are_those_of_the_units_and_of_welch_over_strata() -> None:
    assert sampling_design(12).degrees_of_freedom == pytest.approx(11)
    assert sampling_design(12, clusters=np.arange(12) // 3).degrees_of_freedom == pytest.approx(3)
    equal = sampling_design(40, strata=np.arange(40) % 4)
    assert equal.degrees_of_freedom == pytest.approx(36)
    assert sampling_design(2, strata=[0, 1]).degrees_of_freedom == 0
