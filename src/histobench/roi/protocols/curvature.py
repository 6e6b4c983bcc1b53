"""Approximate Hessians of softmax regression, as metrics for L-BFGS.

Parameters and gradients are matrices [c, d + 1] with the bias last. The loss does not change when one vector
is added to all classes, and the penalty is least where the classes' weights sum to zero: all work happens in
that subspace.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_BLOCKS = 2**28  # bytes of Cholesky factors; above it all classes share one
_ROWS_PER_DIMENSION = 2  # rows that enter a block, the ones with the most curvature
_CONJUGATE_STEPS = 6
_CLOSE_ENOUGH = 1e-4


def centred(matrix: Tensor) -> Tensor:
    """The part whose classes sum to zero."""
    return matrix - matrix.mean(0)


class BlockCurvature:
    """The Hessian's diagonal blocks, one per class (or one for all), through Cholesky factors."""

    def __init__(self, features: Tensor, probabilities: Tensor, *, total: float, ridge: float) -> None:
        """`features` [m, d] are shifted rows, `probabilities` [m, c] theirs; they stand for `total` rows."""
        d, c = features.shape[1], probabilities.shape[1]
        weights = probabilities * (1 - probabilities)
        shared = c * d * d * features.element_size() > _LARGEST_BLOCKS
        columns = weights.mean(1, keepdim=True) if shared else weights
        self.factors = [_factor(features, column, total=total, ridge=ridge) for column in columns.T]
        self.bias = (weights.sum(0, dtype=torch.float64) / total).clamp_min(1e-8)

    def solve(self, gradient: Tensor) -> Tensor:
        """Inverse of the blocks times the gradient."""
        g = centred(gradient)
        out = torch.empty_like(g)
        weight = g[:, :-1].to(self.factors[0].dtype)
        if len(self.factors) == 1:
            out[:, :-1] = torch.cholesky_solve(weight.T, self.factors[0]).T
        else:
            for k, factor in enumerate(self.factors):
                out[k, :-1] = torch.cholesky_solve(weight[k, :, None], factor)[:, 0]
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
        self.blocks = BlockCurvature(features, probabilities, total=total, ridge=ridge)
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
        preconditioned = self.blocks.solve(residual)
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
            preconditioned = self.blocks.solve(residual)
            new_size = float((residual * preconditioned).sum())
            search = preconditioned + new_size / size * search
            size = new_size
        return centred(solution)
