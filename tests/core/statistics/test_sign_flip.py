"""The sign-flip test against scipy's permutation test and its own smallest p-value."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histobench.statistics.tests import sign_flip_p_value


@pytest.mark.parametrize("n", [6, 10])
def test_few_units_are_tried_in_every_way(n: int) -> None:
    sample = np.random.default_rng(n).normal(0.4, 1, n)
    reference = stats.permutation_test(
        (sample, np.zeros(n)), lambda a, b: abs(np.sum(a - b)), permutation_type="samples",
        alternative="greater", n_resamples=np.inf,
    )  # fmt: skip
    assert sign_flip_p_value(sample) == pytest.approx(reference.pvalue)


def test_many_units_come_close_to_the_t_test_and_never_to_zero() -> None:
    sample = np.random.default_rng(1).normal(0.2, 1, 60)
    assert sign_flip_p_value(sample) == pytest.approx(stats.ttest_1samp(sample, 0).pvalue, abs=0.02)
    assert sign_flip_p_value(np.ones(60)) == 1 / 10_000


def test_units_without_a_number_give_no_p_value() -> None:
    assert np.isnan(sign_flip_p_value([1.0, np.nan]))
