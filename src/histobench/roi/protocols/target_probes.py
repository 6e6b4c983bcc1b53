"""Probes for targets that are not one class per image, on frozen features.

    ridge(train, truth, test, ...)      a number: ridge regression

Features are standardized by the training rows. The penalty is chosen on the validation set, or else by
five-fold cross-validation of the training rows, whole groups at a time; everything that is learned, the
standardization included, is learned again in every fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.roi.protocols.linear_probe import folds

Floats = NDArray[np.float64]

#: Penalties that are tried, per training row and feature: from hardly any to one that leaves little else.
STRENGTHS: tuple[float, ...] = tuple(float(10.0**power) for power in np.arange(-6.0, 2.01, 0.5))


@dataclass(frozen=True)
class ProbeRows:
    """Features of one split, and their target; `groups` ("" for a row on its own) stay together in folds."""

    features: Tensor  # [n, d]
    truth: Floats  # [n, columns]
    groups: Sequence[str] | None = None

    def taken(self, rows: NDArray[np.int64]) -> ProbeRows:
        """Some of the rows."""
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return ProbeRows(self.features[torch.from_numpy(rows)], self.truth[rows], groups)


@dataclass(frozen=True)
class TargetOutcome:
    """What a probe predicts for every test row, and what it has to say about itself (plain JSON values)."""

    predicted: Floats  # [n, columns]
    info: dict[str, Any] = field(default_factory=dict)


#: (training rows, features to predict) -> predictions for every strength [s, n, columns]
Path = Callable[[ProbeRows, Tensor], Floats]
#: (predictions [s, n, columns], truth [n, columns]) -> the loss of every strength [s]
Loss = Callable[[Floats, Floats], Floats]


def ridge(
    train: ProbeRows, test: Tensor, *, val: ProbeRows | None = None, seed: int = 0, device: str = "cpu"
) -> TargetOutcome:
    """Ridge regression, the penalty of the least squared error on held-out rows.

    The result is that of scikit-learn's `Ridge(alpha)` on `StandardScaler` features, with `alpha` as in
    `info`.
    """

    def path(rows: ProbeRows, queries: Tensor) -> Floats:
        return _ridge_path(rows, queries, device)

    losses, chosen_on = held_out_losses(
        train, path, lambda said, truth: ((said - truth) ** 2).sum((1, 2)), val=val, seed=seed
    )
    best = int(np.argmin(losses))
    n, d = train.features.shape
    info = {
        "alpha": STRENGTHS[best] * n * d,
        "alpha_chosen_on": chosen_on,
        "mean_squared_error_by_alpha": _by_strength(losses, n * d),
    }
    return TargetOutcome(path(train, test)[best], info)


def _ridge_path(train: ProbeRows, queries: Tensor, device: str) -> Floats:
    x, scaled = standardized(train.features, queries, device)
    n, d = x.shape
    y = torch.from_numpy(train.truth).to(x)
    middle = y.mean(0)
    # Whichever of the two matrices is smaller; both give the same predictions.
    gram = x.T @ x if d <= n else x @ x.T
    values, vectors = torch.linalg.eigh(gram)
    if d <= n:
        left, right = scaled @ vectors, vectors.T @ (x.T @ (y - middle))
    else:
        left, right = scaled @ (x.T @ vectors), vectors.T @ (y - middle)
    said = [
        left @ (right / (values.clamp_min(0.0) + strength * n * d)[:, None]) + middle
        for strength in STRENGTHS
    ]
    return np.asarray(torch.stack(said).cpu().numpy())


def standardized(train: Tensor, queries: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Training and other features in float64, by mean and spread of the training rows.

    Features that never change in training are left out of both.
    """
    x = train.to(device, torch.float64)
    middle, spread = x.mean(0), x.std(0, correction=0)
    changes = spread > 1e-10 * middle.abs().clamp_min(torch.finfo(torch.float64).tiny)
    scale = torch.where(changes, 1 / spread.clamp_min(1e-300), 0.0)
    return (x - middle) * scale, (queries.to(device, torch.float64) - middle) * scale


def held_out_losses(
    train: ProbeRows, path: Path, loss: Loss, *, val: ProbeRows | None, seed: int
) -> tuple[Floats, str]:
    """The mean loss of every strength on rows that were not trained on, and in words which these were."""
    if val is not None:
        return loss(path(train, val.features), val.truth) / len(val.truth), "validation set"
    parts = folds(np.zeros(len(train.truth), dtype=np.int64), train.groups, seed=seed)
    parts = [(fit, rest) for fit, rest in parts if len(fit) > 1]
    if not parts:
        # Without anything to choose by, a penalty from the middle of those that are tried.
        return np.abs(np.log10(STRENGTHS) + 2), "nothing: too few training rows to hold some out"
    total = sum(
        loss(path(train.taken(fit), train.features[torch.from_numpy(rest)]), train.truth[rest])
        for fit, rest in parts
    )
    by = "single rows" if train.groups is None else "whole groups"
    chosen_on = f"{len(parts)}-fold cross-validation on the training set, by {by}"
    return np.asarray(total) / len(train.truth), chosen_on


def _by_strength(losses: Floats, size: float) -> dict[str, float]:
    return {
        f"{strength * size:.6g}": float(loss) for strength, loss in zip(STRENGTHS, losses, strict=True)
    }
