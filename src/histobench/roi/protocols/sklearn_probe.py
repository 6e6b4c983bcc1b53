"""The `sklearn` preset: squared penalty, its strength chosen on held-out images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.protocols.held_out import folds
from histobench.roi.protocols.linear_probe import regularised_probe
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.softmax_regression import Penalty, Solution, fit_softmax

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
    val: Tensor | None = None,
    val_labels: Tensor | None = None,
    groups: Sequence[str] | None = None,
    max_iteration: int = 1000,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """LogisticRegression(C), C of the best balanced accuracy on `val` or in 5-fold cross-validation on train.

    Among equals the smallest C. The classifier is then fitted on all of `train` (not on `val`). With
    `groups` (of the training images) the folds are whole groups. Where every class has one training image
    nothing can be held out, and C is scikit-learn's own 1.
    """
    x, y = train.to(device), train_labels.to(device)
    if val is not None and val_labels is not None:
        chosen_on = "validation set"
        scores = _scores(x, y, val.to(device), val_labels.to(device), n_classes, max_iteration)
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
    return regularised_probe(
        x,
        y,
        test,
        n_classes=n_classes,
        penalty=_penalty(best, y),
        max_iteration=max_iteration,
        tolerance=_FINAL,
        device=device,
        info={"C": best, "C_chosen_on": chosen_on, "balanced_accuracy_by_C": tried},
    )


def _penalty(cost: float, labels: Tensor) -> Penalty:
    """scikit-learn's penalty for the sum of losses times C, in terms of the mean loss.

    With two classes scikit-learn fits one weight vector w; the two of a softmax are w/2 and -w/2, whose
    squares add up to half of that of w: they count twice.
    """
    halves = 2.0 if len(torch.unique(labels)) == 2 else 1.0
    return Penalty("squared", halves / (cost * len(labels)))


def _scores(
    x: Tensor, y: Tensor, queries: Tensor, labels: Tensor, n_classes: int, max_iteration: int
) -> np.ndarray:
    """Balanced accuracy on the queries for every C."""
    present = torch.unique(y)
    if len(present) < 2:
        return np.zeros(len(COSTS))
    predicted = [present[solution.logits(queries).argmax(1)] for solution in _path(x, y, max_iteration)]
    said = torch.nn.functional.one_hot(torch.stack(predicted), n_classes).double()
    values = evaluate_episodes(said, labels)["balanced_accuracy"]
    return np.nan_to_num(values, nan=-1.0)


def _path(x: Tensor, y: Tensor, max_iteration: int) -> Iterator[Solution]:
    """The solution for every C, each found from the one before."""
    present, local = torch.unique(y, return_inverse=True)
    solution = None
    for cost in COSTS:
        solution = fit_softmax(
            x,
            local,
            n_classes=len(present),
            penalty=_penalty(cost, y),
            max_iterations=max_iteration,
            tolerance=_CHOOSING,
            start=solution,
        )
        yield solution
