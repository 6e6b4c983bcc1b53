"""Linear probe: a softmax classifier on frozen features, its held-out choice, label efficiency."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.roi.data.split import assign_groups, units
from histobench.roi.metrics.batched import evaluate_episodes
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

    C counts the classes among the training images, as the published code does. With `use_sklearn` it is
    scikit-learn's LogisticRegression(C=cost). A class without training images gets probability 0.
    """
    cost, penalty = _uni_penalty(train, train_labels)
    common: dict[str, Any] = {"n_classes": n_classes, "max_iteration": max_iteration}
    if use_sklearn:
        return _with_sklearn(train, train_labels, test, cost=cost, **common)
    common |= {"penalty": penalty, "device": device, "info": {"cost": cost}}
    return regularised_probe(train, train_labels, test, **common)


def fitted_linear_probe(
    train: Tensor,
    train_labels: Tensor,
    *,
    max_iteration: int = 1000,
    device: str = "cpu",
    tolerance: float = _TOLERANCE,
) -> tuple[Tensor, Solution]:
    """The classes of the training images [c], and the classifier that `linear_probe` applies."""
    _, penalty = _uni_penalty(train, train_labels)
    return _fitted(train.to(device), train_labels.to(device), penalty, max_iteration, tolerance)


def _fitted(
    x: Tensor,
    y: Tensor,
    penalty: Penalty,
    max_iteration: int,
    tolerance: float,
    start: Solution | None = None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Solution]:
    present, local = torch.unique(y, return_inverse=True)
    return present, fit_softmax(
        x,
        local,
        n_classes=len(present),
        penalty=penalty,
        max_iterations=max_iteration,
        tolerance=tolerance,
        start=start,
        kept=kept,
    )


def linear_probes_of_parts(
    features: Tensor,
    labels: Tensor,
    kept: Tensor,
    *,
    max_iteration: int = 1000,
    device: str = "cpu",
    tolerance: float = _TOLERANCE,
) -> tuple[Tensor, list[Solution]]:
    """The classes [c], and the classifier of `linear_probe` for the rows `kept` [parts, n] of each part."""
    _, penalty = _uni_penalty(features, labels)
    x, y = features.to(device), labels.to(device)
    present, start = _fitted(x, y, penalty, max_iteration, _TOLERANCE)
    every = (_fitted(x, y, penalty, max_iteration, tolerance, start, rows) for rows in kept.to(device))
    return present, [solution for _, solution in every]


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
    max_iteration: int,
    tolerance: float = _TOLERANCE,
    device: str,
    info: dict[str, Any],
) -> Outcome:
    """The minimum of mean cross-entropy + penalty, as probabilities of the test images."""
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    if len(present := torch.unique(train_labels)) == 1:
        said = info | {"objective": 0.0, "weight_norm": 0.0, "iterations": 0, "converged": True}
        return _spread(np.ones((len(test), 1)), present.cpu().numpy(), n_classes, said)
    present, solution = _fitted(train, train_labels, penalty, max_iteration, tolerance)
    said = info | {
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
            "about the encoder; use the preset sklearn, which chooses the penalty"
        ]
    return _spread(solution.probabilities(test).cpu().numpy(), present.cpu().numpy(), n_classes, said)


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
        model = LogisticRegression(C=cost, max_iter=max_iteration, random_state=0)
        model.fit(train.cpu().numpy(), labels)
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


Ints = NDArray[np.int64]
_HELD_OUT = 0.2  # of every class
_FOLDS = 5


def held_out(labels: Ints, groups: Sequence[str] | None = None, *, seed: int = 0) -> tuple[Ints, Ints]:
    """Rows to train on and rows to choose by: about the same share of every class, all classes in training.

    With `groups` (patients, slides; "" for an image that is a group of its own) no group is in both parts;
    nothing is held out where every class has a single group.

    >>> train, chosen = held_out(np.array([0] * 10 + [1] * 5))
    >>> len(train), len(chosen)
    (12, 3)
    >>> train, chosen = held_out(np.repeat([0, 1], 6), list("aabbcc") + list("ddeeff"))
    >>> len(chosen), len({"aabbccddeeff"[row] for row in chosen})
    (4, 2)
    """
    if groups is not None:
        return _held_out_groups(labels, groups, seed=seed)
    rng = np.random.default_rng([seed, len(labels)])
    train: list[Ints] = []
    rest: list[Ints] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(round(_HELD_OUT * len(rows)), 1), len(rows) - 1)
        rest.append(rows[:count])
        train.append(rows[count:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(rest))


def folds(labels: Ints, groups: Sequence[str] | None = None, *, seed: int = 0) -> list[tuple[Ints, Ints]]:
    """Stratified, seeded folds as (training rows, held-out rows), of whole `groups` where these are given."""
    if groups is not None:
        unit_of, counts = _units(labels, groups)
        count = min(_FOLDS, len(counts))
        fold = assign_groups(counts, [1 / count] * count, seed=seed)[unit_of]
    else:
        count = _FOLDS
        rng = np.random.default_rng([seed, len(labels), count])
        fold = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            fold[rows] = (np.arange(len(rows)) + rng.integers(count)) % count
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(count) if (fold == k).any()]


def _held_out_groups(labels: Ints, groups: Sequence[str], *, seed: int) -> tuple[Ints, Ints]:
    unit_of, counts = _units(labels, groups)
    chosen = assign_groups(counts, [1 - _HELD_OUT, _HELD_OUT], seed=seed) == 1
    for label in range(counts.shape[1]):
        # A class that nothing is trained on cannot be predicted, and would make every choice look alike.
        if not counts[~chosen, label].any():
            bearers = np.flatnonzero(counts[:, label])
            chosen[bearers[np.argmin(counts[bearers].sum(1))]] = False
    return np.flatnonzero(~chosen[unit_of]), np.flatnonzero(chosen[unit_of])


def _units(labels: Ints, groups: Sequence[str]) -> tuple[Ints, NDArray[np.float64]]:
    return units(labels, [f"g{group}" if group else f"i{row:09d}" for row, group in enumerate(groups)])


#: Values of C that are tried, as in scikit-learn: the loss is a sum, C multiplies it.
COSTS = tuple(float(f"1e{power}") for power in range(-4, 5))
#: Distance from the minimum while C is chosen, and of the final fit; scikit-learn's own is about 1e-3.
_CHOOSING, _FINAL = 1e-4, 1e-7


def sklearn_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    val: tuple[Tensor, Tensor] | None = None,
    groups: Sequence[str] | None = None,
    max_iteration: int = 1000,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """LogisticRegression(C), C of the best balanced accuracy on `val` or in 5-fold cross-validation on train.

    Among equals the smallest C. With `groups` the folds are whole groups; where every class has one training
    image, C is scikit-learn's own 1.
    """
    x, y = train.to(device), train_labels.to(device)
    if val is not None:
        chosen_on = "validation set"
        scores = _scores(x, y, val[0].to(device), val[1].to(device), n_classes, max_iteration)
    elif len(torch.unique(y)) == len(y):
        chosen_on = "nothing: every class has one training image"
        scores = np.equal(COSTS, 1.0).astype(np.float64)
    else:
        parts = folds(train_labels.cpu().numpy(), groups, seed=seed)
        by_fold = [
            _scores(x[fit], y[fit], x[rest], y[rest], n_classes, max_iteration)
            for fit, rest in (map(torch.from_numpy, part) for part in parts)
        ]
        by = "whole groups" if groups is not None else "images"
        chosen_on = f"{len(by_fold)}-fold cross-validation on the training set, by {by}"
        scores = np.mean(by_fold, axis=0)
    best = COSTS[int(np.argmax(scores))]
    tried = {f"{cost:g}": float(score) for cost, score in zip(COSTS, scores, strict=True)}
    how: dict[str, Any] = {"max_iteration": max_iteration, "tolerance": _FINAL, "device": device}
    info = {"C": best, "C_chosen_on": chosen_on, "balanced_accuracy_by_C": tried}
    return regularised_probe(x, y, test, n_classes=n_classes, penalty=_penalty(best, y), info=info, **how)


def _penalty(cost: float, labels: Tensor) -> Penalty:
    """scikit-learn's penalty for the sum of losses times C, in terms of the mean loss.

    With two classes scikit-learn fits one weight vector w; the two of a softmax are w/2 and -w/2, whose
    squares add up to half of that of w: they count twice.
    """
    return Penalty("squared", (2.0 if len(torch.unique(labels)) == 2 else 1.0) / (cost * len(labels)))


def _scores(
    x: Tensor, y: Tensor, queries: Tensor, labels: Tensor, n_classes: int, max_iteration: int
) -> np.ndarray:
    present = torch.unique(y)
    if len(present) < 2:
        return np.zeros(len(COSTS))
    solution, predicted = None, []
    for cost in COSTS:  # each solution is found from the one before
        _, solution = _fitted(x, y, _penalty(cost, y), max_iteration, _CHOOSING, solution)
        predicted.append(present[solution.logits(queries).argmax(1)])
    said = torch.nn.functional.one_hot(torch.stack(predicted), n_classes).double()
    return np.nan_to_num(evaluate_episodes(said, labels)["balanced_accuracy"], nan=-1.0)


SHARES = (0.01, 0.05, 0.10, 0.25, 0.50, 1.0)
SEEDS = 5


def nested_parts(
    labels: NDArray[np.int64], *, shares: tuple[float, ...] = SHARES, seeds: int = SEEDS, seed: int = 0
) -> Iterator[tuple[float, list[torch.Tensor]]]:
    """For every share the rows of each seed: stratified, at least one image per class, nested in the next.

    >>> parts = dict(nested_parts(np.repeat([0, 1], 100), seeds=1))
    >>> len(parts[0.05][0]), set(parts[0.05][0].tolist()) <= set(parts[0.25][0].tolist())
    (10, True)
    """

    def part(share: float, run: int) -> torch.Tensor:
        chosen = []
        for label in np.unique(labels):
            rows = np.random.default_rng([seed, run, label]).permutation(np.flatnonzero(labels == label))
            chosen.append(rows[: max(1, round(share * len(rows)))])
        return torch.from_numpy(np.sort(np.concatenate(chosen)))

    for share in shares:  # all of the training set is the same set for every seed
        yield share, [part(share, run) for run in range(seeds if share < 1 else 1)]


def setting_of(share: float) -> str:
    """The name of a share in file names.

    >>> setting_of(0.05), setting_of(1.0)
    ('5pct', '100pct')
    """
    return f"{100 * share:g}pct"
