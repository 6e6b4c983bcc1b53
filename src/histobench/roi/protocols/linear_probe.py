"""Linear probe: a softmax classifier on frozen features."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.softmax_regression import Penalty, Solution, fit_softmax

_TOLERANCE = 3e-7


def linear_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    max_iteration: int = 1000,
    use_sklearn: bool = False,
    device: str = "cpu",
) -> Outcome:
    """The `uni` recipe: mean cross-entropy + 0.5 / cost * ||W||, cost = D * C / 100, features as they are.

    C counts the classes among the training images, as the published code does, not those of the class map.
    The norm is not squared and the bias is free. The problem is convex: the solver (see `softmax_regression`)
    goes to the minimum, which the published recipe approaches with L-BFGS from zero. With `use_sklearn` it is
    scikit-learn's LogisticRegression(C=cost), whose penalty is squared and whose loss is a sum.
    A class without training images gets probability 0.
    """
    cost, penalty = _uni_penalty(train, train_labels)
    if use_sklearn:
        return _with_sklearn(
            train, train_labels, test, n_classes=n_classes, cost=cost, max_iteration=max_iteration
        )
    return regularised_probe(
        train,
        train_labels,
        test,
        n_classes=n_classes,
        penalty=penalty,
        max_iteration=max_iteration,
        device=device,
        info={"cost": cost},
    )


def fitted_linear_probe(
    train: Tensor,
    train_labels: Tensor,
    *,
    max_iteration: int = 1000,
    device: str = "cpu",
    start: Solution | None = None,
    tolerance: float = _TOLERANCE,
) -> tuple[Tensor, Solution]:
    """The classes of the training images [c], and the classifier that `linear_probe` applies."""
    _, penalty = _uni_penalty(train, train_labels)
    train, train_labels = train.to(device), train_labels.to(device)
    present, local = torch.unique(train_labels, return_inverse=True)
    return present, fit_softmax(
        train,
        local,
        n_classes=len(present),
        penalty=penalty,
        max_iterations=max_iteration,
        tolerance=tolerance,
        start=start,
    )


def _uni_penalty(train: Tensor, train_labels: Tensor) -> tuple[float, Penalty]:
    cost = train.shape[1] * len(torch.unique(train_labels)) / 100
    return cost, Penalty("norm", 0.5 / cost)


def regularised_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    penalty: Penalty,
    max_iteration: int = 1000,
    tolerance: float = _TOLERANCE,
    device: str = "cpu",
    info: dict[str, Any] | None = None,
) -> Outcome:
    """The minimum of mean cross-entropy + penalty, as probabilities of the test images."""
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    present, local = torch.unique(train_labels, return_inverse=True)
    said = dict(info or {})
    if len(present) == 1:
        columns = torch.ones(len(test), 1, dtype=torch.float64)
        said |= {"objective": 0.0, "weight_norm": 0.0, "iterations": 0, "converged": True}
    else:
        solution = fit_softmax(
            train,
            local,
            n_classes=len(present),
            penalty=penalty,
            max_iterations=max_iteration,
            tolerance=tolerance,
        )
        columns = solution.probabilities(test).cpu()
        said |= {
            "objective": solution.objective,
            "weight_norm": float(solution.weight.norm()),
            "iterations": solution.iterations,
            "evaluations": solution.evaluations,
            "converged": solution.converged,
        }
        if not solution.converged:
            said["warnings"] = [f"the linear probe had not converged after {max_iteration} iterations"]
        elif said["weight_norm"] == 0:
            said["warnings"] = [
                f"the optimum of the linear probe is W = 0: with {train.shape[1]} dimensions the penalty "
                "outweighs the data, every image gets the class frequencies, and the numbers say nothing "
                "about the encoder; the preset sklearn chooses its penalty"
            ]
    return _spread(columns.numpy(), present.cpu().numpy(), n_classes, said)


def _with_sklearn(
    train: Tensor, train_labels: Tensor, test: Tensor, *, n_classes: int, cost: float, max_iteration: int
) -> Outcome:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    labels = train_labels.cpu().numpy()
    present = np.unique(labels)
    info: dict[str, Any] = {"cost": cost, "use_sklearn": True}
    if len(present) == 1:
        return _spread(np.ones((len(test), 1)), present, n_classes, info)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model = LogisticRegression(C=cost, max_iter=max_iteration, random_state=0).fit(
            train.cpu().numpy(), labels
        )
    info |= {"iterations": int(model.n_iter_.max()), "weight_norm": float(np.linalg.norm(model.coef_))}
    info["converged"] = not any(issubclass(w.category, ConvergenceWarning) for w in caught)
    if not info["converged"]:
        info["warnings"] = [f"scikit-learn's solver had not converged after {max_iteration} iterations"]
    return _spread(model.predict_proba(test.cpu().numpy()), present, n_classes, info)


def _spread(columns: np.ndarray, present: np.ndarray, n_classes: int, info: dict[str, Any]) -> Outcome:
    """Probabilities of the classes seen in training, in the columns of all classes."""
    probabilities = np.zeros((len(columns), n_classes))
    probabilities[:, present] = columns
    return Outcome(probabilities, probabilities.argmax(1), info)
