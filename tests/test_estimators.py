"""The estimators keep scikit-learn's promises and give the protocols' numbers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from histobench.core.errors import HistobenchError
from histobench.estimators import KNN, LinearProbe, Prototype, SimpleShot
from histobench.roi.protocols.knn import knn, prototype
from histobench.roi.protocols.linear_probe import linear_probe

ESTIMATORS = [LinearProbe(), LinearProbe(cost=100), KNN(5), Prototype(), SimpleShot()]


@pytest.mark.sample(30)
@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_own_checks(estimator, check) -> None:  # type: ignore[no-untyped-def]
    check(estimator)


def _data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 150)
    return draw.normal(size=(150, 12)) + y[:, None], np.array(["a", "b", "c"])[y]


def test_predictions_are_those_of_the_protocols() -> None:
    x, y = _data()
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


def test_simple_shot_draws_its_support_with_a_seed() -> None:
    x, y = _data()
    first, again, other = (SimpleShot(4, random_state=seed).fit(x, y) for seed in (1, 1, 2))
    assert (first.support_ == again.support_).all()
    assert (first.support_ != other.support_).any()
    assert [int((y[np.unique(first.support_)] == name).sum()) for name in "abc"] == [4, 4, 4]


WRONG: dict[str, tuple[Any, str]] = {
    "no neighbours": (KNN(0), "n_neighbors: expected a whole number of at least 1, found 0"),
    "a cost that is no number": (LinearProbe(float("nan")), "cost: expected a number above 0, found nan"),
    "no iterations": (LinearProbe(max_iter=0), "max_iter: expected a whole number of at least 1, found 0"),
    "no shots": (SimpleShot(0), "n_shot: expected a whole number of at least 1, found 0"),
    "a seed below 0": (SimpleShot(random_state=-1), "random_state: .* at least 0, found -1"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("estimator", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_parameter_is_refused_when_it_is_fitted(estimator: Any, message: str) -> None:
    x, y = _data()
    with pytest.raises(ValueError, match=message) as refused:
        estimator.fit(x, y)
    assert isinstance(refused.value, HistobenchError)
    assert not [name for name in vars(estimator) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        estimator.predict(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("estimator", ESTIMATORS[1:], ids=lambda e: type(e).__name__)
def test_every_form_of_the_same_data_gives_the_same_predictions(estimator: Any) -> None:
    x, y = _data()
    x = x.astype(np.float32)
    truth = clone(estimator).fit(x, y).predict(x)
    table = pd.DataFrame(x, columns=[f"f{i}" for i in range(12)])
    assert (clone(estimator).fit(x.astype(np.float64), y).predict(x.astype(np.float64)) == truth).all()
    assert (clone(estimator).fit(table, pd.Series(y)).predict(table) == truth).all()
    assert (clone(estimator).fit(x.tolist(), list(y)).predict(x.tolist()) == truth).all()
    fixed = x.astype(">f8")
    fixed.setflags(write=False)
    assert (clone(estimator).fit(fixed, y).predict(fixed) == truth).all()
    numbers = np.unique(y, return_inverse=True)[1] * 10**6
    assert (clone(estimator).fit(x, numbers).predict(x) == np.unique(numbers)[numbers_of(truth)]).all()
    fitted = clone(estimator).fit(x, y)
    assert (pickle.loads(pickle.dumps(fitted)).predict(x) == truth).all()
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        clone(estimator).fit(csr_matrix(x), y)


def numbers_of(labels: np.ndarray) -> np.ndarray:
    """a, b, c as 0, 1, 2."""
    return np.array([ord(label) - ord("a") for label in labels])


def test_a_probe_that_has_not_converged_says_so() -> None:
    x, y = _data()
    with pytest.warns(ConvergenceWarning, match="not converged after 1 iterations; raise max_iter"):
        LinearProbe(100, max_iter=1).fit(x, y)
