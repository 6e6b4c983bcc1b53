"""The `sklearn` preset: squared penalty, its strength chosen on held-out images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols.held_out import folds
from histobench.roi.protocols.linear_probe import regularised_probe
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.softmax_regression import Penalty

#: Values of C that are tried, as in scikit-learn: the loss is a sum, C multiplies it.
COSTS = tuple(float(f"1e{power}") for power in range(-4, 5))


def sklearn_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    val: Tensor | None = None,
    val_labels: Tensor | None = None,
    max_iteration: int = 1000,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """LogisticRegression(C), C of the best balanced accuracy on `val` or in 5-fold cross-validation on train.

    Among equals the smallest C. The classifier is then fitted on all of `train` (not on `val`).
    """

    def probe(rows: Tensor, labels: Tensor, queries: Tensor, cost: float) -> Outcome:
        penalty = Penalty("squared", 1.0 / (cost * len(rows)))
        return regularised_probe(
            rows,
            labels,
            queries,
            n_classes=n_classes,
            penalty=penalty,
            max_iteration=max_iteration,
            device=device,
            info={"C": cost},
        )

    def balanced(outcome: Outcome, labels: Tensor) -> float:
        names = [str(label) for label in range(n_classes)]
        value = (
            evaluate(outcome.probabilities, labels.numpy(), classes=names).scores["balanced_accuracy"].value
        )
        return -1.0 if value is None else value

    if val is not None and val_labels is not None:
        chosen_on = "validation set"
        scores = [balanced(probe(train, train_labels, val, cost), val_labels) for cost in COSTS]
    else:
        chosen_on = "5-fold cross-validation on the training set"
        parts = [tuple(map(torch.from_numpy, part)) for part in folds(train_labels.numpy(), seed=seed)]
        scores = [
            float(
                np.mean(
                    [
                        balanced(probe(train[fit], train_labels[fit], train[rest], cost), train_labels[rest])
                        for fit, rest in parts
                    ]
                )
            )
            for cost in COSTS
        ]
    best = COSTS[int(np.argmax(scores))]
    outcome = probe(train, train_labels, test, best)
    tried = {f"{cost:g}": score for cost, score in zip(COSTS, scores, strict=True)}
    return Outcome(
        outcome.probabilities,
        outcome.predicted,
        {**outcome.info, "C_chosen_on": chosen_on, "balanced_accuracy_by_C": tried},
    )
