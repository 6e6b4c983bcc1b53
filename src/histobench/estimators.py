"""The protocols as scikit-learn classifiers, for pipelines, cross-validation and one's own features.

They call the same functions as `histobench run`, so that numbers agree.

>>> import numpy as np, histobench as hb
>>> from sklearn.model_selection import GroupKFold, cross_val_score
>>> draw = np.random.default_rng(0)
>>> y = np.repeat(["normal", "tumour"], 30)
>>> X = draw.normal(size=(60, 8)) + (y == "tumour")[:, None]
>>> model, patients = hb.estimators.Prototype(), np.arange(60) // 3
>>> bool(cross_val_score(model, X, y, groups=patients, cv=GroupKFold(4)).mean() > 0.8)
True
"""

from __future__ import annotations

import warnings
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from histobench.core.errors import InvalidParameterError
from histobench.core.records import checked

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KNN", "LinearProbe", "Prototype", "SimpleShot"]


def __dir__() -> list[str]:
    return sorted(__all__)


class _ProtocolClassifier(ClassifierMixin, BaseEstimator):
    """What the four share: validation of inputs, labels of any kind, probabilities to predictions."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from features and labels.

        Parameters are checked first. A fit that fails leaves the estimator as it was: not fitted, or with
        what an earlier fit has learned.

        Parameters
        ----------
        X : array [n, d]
            Features.
        y : array [n]
            Labels of any kind, at least two classes.

        Returns
        -------
        self
        """
        self._check_parameters()
        fitted = copy(self)
        rows, targets = validate_data(fitted, X, y, dtype=(np.float32, np.float64), ensure_min_samples=2)
        try:
            check_classification_targets(targets)
            fitted.classes_, labels = np.unique(targets, return_inverse=True)
        except TypeError:
            raise InvalidParameterError("y: labels of several kinds; make all of them texts") from None
        if len(fitted.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes; y has 1 class")
        fitted._learn(rows, labels.astype(np.int64))
        self.__dict__ = fitted.__dict__
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the probabilities of the classes.

        Parameters
        ----------
        X : array [n, d]
            Features.

        Returns
        -------
        ndarray [n, classes]
            In the order of `classes_`.
        """
        return self._outcome(self._checked(X))[0]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the labels.

        Parameters
        ----------
        X : array [n, d]
            Features.

        Returns
        -------
        ndarray [n]
        """
        places = self._outcome(self._checked(X))[1]
        return np.asarray(self.classes_[places])

    def _checked(self, X: ArrayLike) -> NDArray[np.floating]:
        check_is_fitted(self)
        self._check_parameters()  # they may have been set anew
        return np.asarray(validate_data(self, X, dtype=(np.float32, np.float64), reset=False))

    def _check_parameters(self) -> None:
        """Refuse parameters of another kind or range; `__init__` takes what it is given, as is the custom."""

    def _learn(self, X: NDArray[np.floating], labels: NDArray[np.int64]) -> None:
        raise NotImplementedError

    def _outcome(self, X: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        raise NotImplementedError


def _tensor(X: NDArray[np.generic]) -> Tensor:
    import torch

    # In this machine's byte order, and writable: of arrays that are not, PyTorch warns.
    return torch.from_numpy(np.require(X, X.dtype.newbyteorder("="), ["C", "W"]))


class LinearProbe(_ProtocolClassifier):
    """Softmax regression as in the `uni` preset: mean cross-entropy + 0.5 / cost * ||W||, not squared.

    Parameters
    ----------
    cost : float or None
        Weight of the data against the penalty; None is D * C / 100, as published. With few dimensions that
        penalty outweighs the data (W = 0); give a larger cost there. scikit-learn's check of the score on two
        and three dimensions therefore does not apply (`poor_score`); all other checks hold.
    max_iter : int
        Iterations of the solver.

    Attributes
    ----------
    coef_ : ndarray [classes, d]
    intercept_ : ndarray [classes]
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> y = np.arange(40) % 2
    >>> X = np.random.default_rng(0).normal(size=(40, 8)) + 3 * y[:, None]
    >>> hb.estimators.LinearProbe(cost=100.0).fit(X, y).score(X, y)
    1.0
    """

    def __init__(self, cost: float | None = None, max_iter: int = 1000) -> None:
        self.cost = cost
        self.max_iter = max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self.cost is None
        return tags

    def _check_parameters(self) -> None:
        checked(int, self.max_iter, "max_iter", least=1)
        if self.cost is not None:
            checked(float, self.cost, "cost", above=0)

    def _learn(self, X: NDArray[np.floating], labels: NDArray[np.int64]) -> None:
        from histobench.roi.protocols.softmax_regression import Penalty, fit_softmax

        cost = X.shape[1] * len(self.classes_) / 100 if self.cost is None else float(self.cost)
        self._solution = fit_softmax(
            _tensor(X),
            _tensor(labels),
            n_classes=len(self.classes_),
            penalty=Penalty("norm", 0.5 / cost),
            max_iterations=int(self.max_iter),
            tolerance=3e-7,
        )
        if not self._solution.converged:
            warnings.warn(
                f"the linear probe had not converged after {self.max_iter} iterations; raise max_iter",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.coef_ = self._solution.weight.cpu().numpy()
        self.intercept_ = self._solution.bias.cpu().numpy()
        self.n_iter_ = max(1, self._solution.iterations)

    def _outcome(self, X: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        probabilities: NDArray[np.float64] = self._solution.probabilities(_tensor(X)).cpu().numpy()
        return probabilities, probabilities.argmax(1)


class _Remembering(_ProtocolClassifier):
    """A protocol that keeps the training features and does its work when it is asked."""

    def _learn(self, X: NDArray[np.floating], labels: NDArray[np.int64]) -> None:
        self._train, self._labels = _tensor(X.copy()), _tensor(labels.copy())


class KNN(_Remembering):
    """Uniform votes of the nearest training images, after centring by the mean and scaling to unit length.

    Parameters
    ----------
    n_neighbors : int
        How many vote; all of the training images where there are fewer.

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> y = np.arange(40) % 2
    >>> X = np.random.default_rng(0).normal(size=(40, 8)) + 3 * y[:, None]
    >>> hb.estimators.KNN(n_neighbors=5).fit(X, y).score(X, y)
    1.0
    """

    def __init__(self, n_neighbors: int = 20) -> None:
        self.n_neighbors = n_neighbors

    def _check_parameters(self) -> None:
        checked(int, self.n_neighbors, "n_neighbors", least=1)

    def _outcome(self, X: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        from histobench.roi.protocols.knn import knn

        votes = min(int(self.n_neighbors), len(self._train))  # NumPy has integers of its own
        found = knn(self._train, self._labels, _tensor(X), n_classes=len(self.classes_), n_neighbors=votes)
        return found.probabilities, found.predicted


class Prototype(_Remembering):
    """The nearest class mean, after centring by the mean and scaling to unit length.

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> y = np.arange(40) % 2
    >>> X = np.random.default_rng(0).normal(size=(40, 8)) + 3 * y[:, None]
    >>> hb.estimators.Prototype().fit(X, y).score(X, y)
    1.0
    """

    def _outcome(self, X: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        from histobench.roi.protocols.knn import prototype

        found = prototype(self._train, self._labels, _tensor(X), n_classes=len(self.classes_))
        return found.probabilities, found.predicted


class SimpleShot(Prototype):
    """One few-shot episode: prototypes of `n_shot` images per class, drawn with a seed.

    Parameters
    ----------
    n_shot : int
        Support images per class; all of a class that has fewer.
    random_state : int, a NumPy generator, or None
        Seed of the draw; None draws anew each time.

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> y = np.arange(40) % 2
    >>> X = np.random.default_rng(0).normal(size=(40, 8)) + 3 * y[:, None]
    >>> hb.estimators.SimpleShot(n_shot=8).fit(X, y).score(X, y)
    1.0
    """

    def __init__(
        self, n_shot: int = 16, random_state: int | np.random.Generator | np.random.RandomState | None = 0
    ) -> None:
        self.n_shot = n_shot
        self.random_state = random_state

    def _check_parameters(self) -> None:
        checked(int, self.n_shot, "n_shot", least=1)
        if not isinstance(self.random_state, np.random.Generator | np.random.RandomState | None):
            checked(int, self.random_state, "random_state", least=0)

    def _learn(self, X: NDArray[np.floating], labels: NDArray[np.int64]) -> None:
        draw = np.random.default_rng(self.random_state)
        support = [
            draw.choice(rows, min(self.n_shot, len(rows)), replace=False)
            for rows in (np.flatnonzero(labels == label) for label in range(len(self.classes_)))
        ]
        self.support_ = np.sort(np.concatenate(support))
        super()._learn(X[self.support_], labels[self.support_])
