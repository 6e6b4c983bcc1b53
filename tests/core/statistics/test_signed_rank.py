"""The Bayesian signed-rank test is that of baycomp."""

from __future__ import annotations

from dataclasses import astuple

import baycomp
import numpy as np
import pytest
from numpy.typing import ArrayLike

from histobench.statistics.tests import SignedRank, signed_ranks


def signed_rank(differences: ArrayLike, *, rope: float = 0.01) -> SignedRank | None:
    each = np.asarray(differences, dtype=np.float64)
    return signed_ranks(np.stack([each, np.zeros_like(each)], axis=1), rope=rope)[0][1]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "shift", "rope"), [(5, 0.01, 0.01), (12, 0.02, 0.01), (20, 0.0, 0.02), (8, 0.03, 0.0)]
)
def test_the_chances_are_those_of_baycomp(n: int, shift: float, rope: float) -> None:
    generator = np.random.default_rng(n)
    second = generator.uniform(0.6, 0.9, n)
    first = second + generator.normal(shift, 0.02, n)
    found = signed_rank(first - second, rope=rope)
    posterior = baycomp.SignedRankTest(second, first, rope=rope, nsamples=20_000, random_state=0)
    expected = posterior.probs()
    ours = (found.worse, found.equivalent, found.better)
    assert ours == pytest.approx(expected, abs=0.015)
    assert sum(ours) == pytest.approx(1)


def test_the_next_dataset_varies_more_than_the_datasets_as_a_whole() -> None:
    differences = [0.05, 0.04, 0.03, 0.06, 0.05, -0.03, 0.02, 0.05]
    found = signed_rank(differences, rope=0.01)
    assert found.better > 0.95
    assert found.next_better == pytest.approx(7 / 8.5)
    assert found.next_worse == pytest.approx(1 / 8.5)
    assert found.next_better + found.next_equivalent + found.next_worse == pytest.approx(1)


def test_models_within_the_region_on_every_dataset_are_equivalent() -> None:
    found = signed_rank(np.linspace(-0.004, 0.004, 12), rope=0.01)
    assert found.equivalent > 0.99


def test_all_pairs_use_the_datasets_that_both_were_run_on() -> None:
    generator = np.random.default_rng(3)
    scores = generator.uniform(0.5, 0.9, (9, 4))
    scores[2, 1] = scores[5, 3] = np.nan
    scores[:, 2] = np.nan
    scores[0, 2] = 0.7
    found = signed_ranks(scores, rope=0.02)
    for i in range(4):
        for j in range(4):
            alone = None if i == j else signed_rank(scores[:, i] - scores[:, j], rope=0.02)
            if alone is None:
                assert found[i][j] is None
            else:
                assert astuple(found[i][j]) == pytest.approx(astuple(alone))
    assert found[0][1].datasets == 8
    assert found[0][2].datasets == 1
    losses = signed_ranks(scores, rope=0.02, lower_is_better=True)
    assert astuple(losses[0][1]) == pytest.approx(astuple(found[1][0]))


def test_without_a_shared_dataset_there_is_no_statement() -> None:
    assert signed_rank([np.nan, np.nan]) is None
    assert signed_ranks([[0.5, np.nan], [np.nan, 0.5]])[0][1] is None
    with pytest.raises(ValueError, match="negative"):
        signed_rank([0.1], rope=-1)
