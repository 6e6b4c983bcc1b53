"""The estimators keep scikit-learn's promises and give the protocols' numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from histobench.estimators import KNN, LinearProbe, Prototype, SimpleShot
from histobench.roi.protocols.knn import knn
from histobench.roi.protocols.linear_probe import linear_probe
from histobench.roi.protocols.prototype import prototype

ESTIMATORS = [LinearProbe(), LinearProbe(cost=100), KNN(5), Prototype(), SimpleShot()]


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_own_checks(estimator, check) -> None:  # type: ignore[no-untyped-def]
    check(estimator)


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 150)
    return draw.normal(size=(150, 12)) + y[:, None], np.array(["a", "b", "c"])[y], np.arange(150) // 5


def test_predictions_are_those_of_the_protocols() -> None:
    x, y, _ = _data()
    labels = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    train, test = torch.from_numpy(x[:100]), torch.from_numpy(x[100:])
    for estimator, protocol in (
        (LinearProbe(), linear_probe(train, labels[:100], test, n_classes=3)),
        (KNN(20), knn(train, labels[:100], test, n_classes=3)),
        (Prototype(), prototype(train, labels[:100], test, n_classes=3)),
    ):
        found = estimator.fit(x[:100], y[:100])
        assert np.allclose(found.predict_proba(x[100:]), protocol.probabilities, atol=1e-12)
        assert (found.predict(x[100:]) == np.array(["a", "b", "c"])[protocol.predicted]).all()


@pytest.mark.parametrize("estimator", ESTIMATORS[1:], ids=lambda e: type(e).__name__)
def test_they_work_with_groups_and_in_a_pipeline(estimator) -> None:  # type: ignore[no-untyped-def]
    x, y, groups = _data()
    scores = cross_val_score(
        make_pipeline(StandardScaler(), estimator), x, y, groups=groups, cv=GroupKFold(3)
    )
    assert scores.min() > 0.6


def test_simple_shot_draws_its_support_with_a_seed() -> None:
    x, y, _ = _data()
    first, again, other = (SimpleShot(4, random_state=seed).fit(x, y) for seed in (1, 1, 2))
    assert (first.support_ == again.support_).all()
    assert (first.support_ != other.support_).any()
    assert [int((y[first.support_] == name).sum()) for name in "abc"] == [4, 4, 4]
