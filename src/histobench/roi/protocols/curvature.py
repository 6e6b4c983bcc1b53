"""Approximate Hessians of softmax regression, as metrics for L-BFGS.

Parameters and gradients are matrices [c, d + 1] with the bias last. The loss does not change when one vector
is added to all classes, and the penalty is least where the classes' weights sum to zero: all work happens in
that subspace.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS_PER_DIMENSION = 3  # rows that enter the shared block, the ones with the most curvature
_CONJUGATE_STEPS = 3
_CLOSE_ENOUGH = 1e-4
_FAR = 8  # times as long as most rows: such a row says nothing about the others
_LEADING = 32  # directions that are told apart by the cheapest metric
_OUTSTANDING = 2  # times the variance of the next, from which the first is more than chance


def centred(matrix: Tensor) -> Tensor:
    """The part whose classes sum to zero."""
    return matrix - matrix.mean(0)


class LeadingCurvature:
    """The variance of the features in its leading directions, one number for all others; up to a factor."""

    def __init__(self, features: Tensor, *, n_classes: int) -> None:
        """`features` [m, d] are some shifted rows, more than a handful."""
        rows = features.double()
        length = rows.norm(dim=1, keepdim=True)
        usual = length.median()
        if float(usual) > 0:  # one row that is very far from the others would be taken for a direction of all
            rows = torch.where(length > _FAR * usual, rows * (usual / length), rows)
        variance, among = torch.linalg.eigh(rows @ rows.T / len(rows))  # ascending
        count = min(_LEADING, len(rows) // 2)
        self.beside = float(variance[-count - 1])  # the most in any other direction, as far as rows tell
        variance = variance.clamp_min(1e-6 * float(variance[-1]) + 1e-300)
        self.rest = variance[-count - 1]
        if variance[-1] < _OUTSTANDING * self.rest:
            # Noise: what looks like leading directions is chance, and more than the true variance.
            count, self.rest = 0, rows.square().mean()
        first = len(rows) - count
        self.variance = variance[first:]
        self.directions = (among[:, first:] / (len(rows) * self.variance).sqrt()).T @ rows  # [count, d]
        self.undecided = (1 - 1 / n_classes) / n_classes  # curvature by variance, before anything is known

    def solve(self, gradient: Tensor, *, ridge: float) -> Tensor:
        """Inverse times the gradient, but for the curvature beside these; `ridge` is the penalty's."""
        more = ridge / self.undecided
        rest = self.rest + more
        out = gradient.clone()
        along = gradient[:, :-1] @ self.directions.T
        out[:, :-1] -= (along * (1 - rest / (self.variance + more))) @ self.directions
        out[:, -1] *= rest
        return out

    def least_gap(self, gradient: Tensor, *, ridge: float) -> float:
        """The least distance from the minimum that a gradient beside the leading directions allows.

        No curvature of the loss is more than half the variance. Where the estimate of L-BFGS is below this,
        it was misled, for instance by a row that is very far from all others.
        """
        weight = gradient[:, :-1]
        outside = weight - (weight @ self.directions.T) @ self.directions
        return float(outside.square().sum()) / (max(self.beside, 1e-300) + 2 * ridge)


class SharedCurvature:
    """One block for all classes: the Gram matrix of the features, weighted by the classes' mean curvature."""

    def __init__(self, features: Tensor, probabilities: Tensor, *, total: float, ridge: float) -> None:
        """`features` [m, d] are shifted rows, `probabilities` [m, c] theirs; they stand for `total` rows."""
        weights = probabilities * (1 - probabilities)
        self.factor = _factor(features, weights.mean(1), total=total, ridge=ridge)
        self.bias = (weights.sum(0, dtype=torch.float64) / total).clamp_min(1e-8)

    def solve(self, gradient: Tensor) -> Tensor:
        """Inverse of the block times the gradient."""
        g = centred(gradient)
        out = torch.empty_like(g)
        out[:, :-1] = torch.cholesky_solve(g[:, :-1].T.to(self.factor.dtype), self.factor).T
        out[:, -1] = g[:, -1] / self.bias
        return centred(out)


def _factor(features: Tensor, weights: Tensor, *, total: float, ridge: float) -> Tensor:
    d = features.shape[1]
    heavy = torch.topk(weights, min(len(features), _ROWS_PER_DIMENSION * d)).indices
    share = weights.sum() / weights[heavy].sum().clamp_min(1e-30)
    rows = features[heavy] * (weights[heavy] * (share / total)).sqrt()[:, None]
    gram = rows.T @ rows
    jitter = ridge + 1e-7 * float(gram.diagonal().mean())
    while True:
        damped = gram.clone()
        damped.diagonal().add_(jitter)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed) == 0:
            return factor
        jitter *= 10


class CoupledCurvature:
    """The Hessian over some rows, classes coupled, inverted by a few conjugate-gradient steps."""

    def __init__(
        self, features: Tensor, probabilities: Tensor, *, total: float, ridge: float, ray: Tensor | None
    ) -> None:
        """`ray` is the unit direction of W along which the penalty has no curvature, if there is one."""
        self.shared = SharedCurvature(features, probabilities, total=total, ridge=ridge)
        self.features, self.probabilities = features, probabilities
        self.scale, self.ridge, self.ray = 1 / total, ridge, ray

    def times(self, vector: Tensor) -> Tensor:
        """Hessian times vector."""
        v = vector.to(self.features.dtype)
        moved = torch.addmm(v[:, -1], self.features, v[:, :-1].T)
        moved -= (self.probabilities * moved).sum(1, keepdim=True)
        moved *= self.probabilities * self.scale
        out = torch.empty_like(vector)
        out[:, :-1] = moved.T @ self.features
        out[:, -1] = moved.sum(0) + 1e-8 * vector[:, -1]
        bent = vector[:, :-1]
        if self.ray is not None:
            bent = bent - self.ray * (self.ray * bent).sum()
        out[:, :-1] += self.ridge * bent
        return out

    def solve(self, gradient: Tensor) -> Tensor:
        """Approximate inverse times the gradient."""
        residual = centred(gradient)
        solution = torch.zeros_like(residual)
        preconditioned = self.shared.solve(residual)
        search = preconditioned
        size = start = float((residual * preconditioned).sum())
        for _ in range(_CONJUGATE_STEPS):
            if size <= _CLOSE_ENOUGH * start or size <= 0:
                break
            image = self.times(search)
            curvature = float((search * image).sum())
            if curvature <= 0:
                break
            solution += size / curvature * search
            residual = residual - size / curvature * image
            preconditioned = self.shared.solve(residual)
            new_size = float((residual * preconditioned).sum())
            search = preconditioned + new_size / size * search
            size = new_size
        return centred(solution)
