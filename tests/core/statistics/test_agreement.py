"""Cohen's kappa against scikit-learn and statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from statsmodels.stats.inter_rater import cohens_kappa

from histobench.statistics.tests import cohen_kappa


@pytest.mark.parametrize("labels", [2, 3, 5])
@pytest.mark.parametrize("n", [12, 60, 400])
def test_kappa_and_its_error_are_those_of_the_libraries(labels: int, n: int) -> None:
    generator = np.random.default_rng(n + labels)
    first = generator.integers(labels, size=n)
    second = np.where(generator.random(n) < 0.6, first, generator.integers(labels, size=n))
    found = cohen_kappa(first.tolist(), second.tolist())
    known = cohens_kappa(confusion_matrix(first, second))
    assert found.kappa == pytest.approx(cohen_kappa_score(first, second))
    assert found.kappa == pytest.approx(known.kappa)
    assert found.standard_error == pytest.approx(known.std_kappa)
    assert found.interval.low <= known.kappa_low + 1e-12
    assert found.interval.high >= min(known.kappa_upp, 1.0) - 1e-12
    if n == 400:
        assert found.interval.low == pytest.approx(known.kappa_low, abs=0.02)


def test_perfect_agreement_of_few_is_not_certain() -> None:
    found = cohen_kappa([0, 1] * 5, [0, 1] * 5)
    assert found.kappa == 1
    assert found.standard_error == 0
    assert found.interval.low < 0.6


def test_the_interval_holds_the_truth() -> None:
    """Two raters who know the label of 70 % and guess the rest: kappa is 0.49 for even labels."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        truth = generator.integers(2, size=40)
        raters = [np.where(generator.random(40) < 0.7, truth, generator.integers(2, size=40)) for _ in "ab"]
        held += cohen_kappa(raters[0].tolist(), raters[1].tolist()).interval.contains(0.49)
    assert held / 600 >= 0.93
