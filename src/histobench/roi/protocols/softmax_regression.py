"""Multinomial logistic regression, mean cross-entropy + penalty(W): L-BFGS in a metric of the leading
directions of the features, which a few hundred rows show; in it all directions look alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from histobench.core.threads import one_thread
from histobench.roi.protocols.centering import Centring

_HISTORY = 20
_SUFFICIENT = 1e-4  # Armijo
_SMALLEST_STEP = 1e-6
_LINEAR = 1e-10  # relative change of a gradient where the function is linear but for rounding
#: A value below this is as good as zero: separable data would otherwise be fitted to the last bit.
_NEGLIGIBLE = 1e-3
_SAMPLE = 256  # rows that show the leading directions
_LEADING = 32
_FAR = 8  # times the usual length: such a row says nothing about the others
_STEEP = 100  # times as far from zero as from each other: rows are shifted before they are multiplied
_SMALL = 2**20  # up to this many numbers the work is done in float64
_BLOCKS = 16  # sums are taken over this many blocks of rows, whatever the number of threads


@dataclass(frozen=True)
class Penalty:
    """`strength` * ||W|| (the norm itself) or `strength` * ||W||^2 / 2, Frobenius norms without the bias."""

    kind: Literal["norm", "squared"]
    strength: float

    def value(self, weight: Tensor) -> float:
        norm = float(weight.norm())
        return self.strength * (norm if self.kind == "norm" else norm * norm / 2)

    def gradient(self, weight: Tensor) -> Tensor:
        """Return its gradient; 0 at W = 0, where the norm has none."""
        if self.kind == "squared":
            return self.strength * weight
        return self.strength * weight / weight.norm().clamp_min(1e-30)

    def curvature(self, weight: Tensor) -> float:
        """Return its second derivative across the direction of W."""
        if self.kind == "squared":
            return self.strength
        return self.strength / max(float(weight.norm()), 1e-2)


@dataclass(frozen=True)
class Solution:
    """The minimizer: logits = x W^T + b."""

    weight: Tensor  # [c, d] float64
    bias: Tensor  # [c] float64
    objective: float
    iterations: int
    evaluations: int  # passes over all rows
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        return features.double() @ self.weight.T + self.bias

    def probabilities(self, features: Tensor) -> Tensor:
        return torch.softmax(self.logits(features), dim=1)


class SoftmaxLoss:
    """Objective and gradient; features are shifted by a mean, which the free bias takes up."""

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        mean: Tensor,
        penalty: Penalty,
        kept: Tensor | None = None,
        threads: int = 1,
    ) -> None:
        """Prepare for rows; `kept` [n] selects some of them; `threads` share the products."""
        self.threads = threads
        self.features, self.mean, self.penalty = features, mean, penalty
        self.count = len(features) if kept is None else int(kept.sum())
        self.evaluations = 0
        ends = [0, len(features) // _BLOCKS * _BLOCKS, len(features)]
        self._parts = [
            [
                None if rows is None else rows[start:end].reshape(blocks, -1, *rows.shape[1:])
                for rows in (features, labels, None if kept is None else kept.to(features.dtype))
            ]
            for start, end, blocks in zip(ends, ends[1:], (_BLOCKS, 1), strict=False)
            if end > start
        ]

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        torch.set_num_threads(self.threads)
        try:
            return torch.bmm(a, b)
        finally:
            torch.set_num_threads(1)

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return objective and gradient at parameters [c, d + 1], which may be on another device."""
        there = theta.to(self.features.device)
        weight, bias = there[:, :-1], there[:, -1]
        dtype = self.features.dtype
        shift, factor = (bias - weight @ self.mean).to(dtype)[:, None], weight.to(dtype)
        loss = there.new_zeros(1)
        pulled = torch.zeros_like(there)
        for x, labels, kept in self._parts:
            assert x is not None
            assert labels is not None
            # [blocks, classes, rows]: each block is the work of one thread, so that every number of threads
            # gives the same bits; classes before rows make the softmax several times faster.
            logits = self._product(factor.expand(len(x), -1, -1), x.mT).add_(shift)
            residual = torch.log_softmax(logits, dim=1)
            log_p = residual.gather(1, labels[:, None])
            if kept is not None:
                log_p *= kept[:, None]
            loss -= log_p.sum(2, dtype=torch.float64).sum()
            minus = torch.full_like(labels[:, None], -1, dtype=dtype)
            residual.exp_().scatter_add_(1, labels[:, None], minus)
            if kept is not None:
                residual *= kept[:, None]
            pulled[:, :-1] += self._product(residual, x).sum(0, dtype=torch.float64)
            pulled[:, -1] += residual.sum(2, dtype=torch.float64).sum(0)
        pulled[:, :-1] -= pulled[:, -1:] * self.mean
        both = torch.cat([pulled.flatten(), loss]).to(theta.device)  # one transfer from a GPU
        gradient = both[:-1].view_as(theta).div_(self.count)
        gradient[:, :-1] += self.penalty.gradient(theta[:, :-1])
        self.evaluations += 1
        return float(both[-1]) / self.count + self.penalty.value(theta[:, :-1]), gradient


class LeadingCurvature:
    """The variance of the features in its leading directions, one number for all others; about the Hessian
    at W = 0."""

    def __init__(self, features: Tensor, *, n_classes: int) -> None:
        rows = features.double()
        length = rows.norm(dim=1, keepdim=True)
        usual = length.median()
        if float(usual) > 0:  # one row very far from the others would be taken for a direction of all
            rows = torch.where(length > _FAR * usual, rows * (usual / length), rows)
        variance, among = torch.linalg.eigh(rows @ rows.T / len(rows))  # ascending
        count = max(0, min(_LEADING, len(rows) // 2, len(rows) - 1))
        self.beside = float(variance[-count - 1])  # the most in any other direction, as far as rows show
        variance = variance.clamp_min(1e-6 * float(variance[-1]) + 1e-300)
        self.rest = variance[-count - 1]
        if variance[-1] < 2 * self.rest:
            # Noise: what looks like leading directions is chance, and more than the true variance.
            count, self.rest = 0, rows.square().mean().clamp_min(1e-300)
        first = len(rows) - count
        self.variance = variance[first:]
        self.directions = (among[:, first:] / (len(rows) * self.variance).sqrt()).T @ rows  # [count, d]
        self.undecided = (1 - 1 / n_classes) / n_classes  # curvature by variance at W = 0

    def solve(self, gradient: Tensor, *, ridge: float) -> Tensor:
        """Return its inverse times the gradient; `ridge` is the curvature of the penalty."""
        more = ridge / self.undecided
        rest = self.rest + more
        out = gradient / (rest * self.undecided)
        along = out[:, :-1] @ self.directions.T
        out[:, :-1] -= (along * (1 - rest / (self.variance + more))) @ self.directions
        out[:, -1] *= rest
        return out

    def least_gap(self, gradient: Tensor, *, ridge: float) -> float:
        """Return the least distance from the minimum that a gradient beside the leading directions allows.

        No curvature of the loss is more than half the variance. An estimate below this was misled, for
        instance by a row that is very far from all others.
        """
        weight = gradient[:, :-1]
        outside = weight - (weight @ self.directions.T) @ self.directions
        return float(outside.square().sum()) / (max(self.beside, 1e-300) + 2 * ridge)


class _History:
    """The last steps s_i and the changes y_i of the gradient along them."""

    def __init__(self, like: Tensor) -> None:
        self.steps = like.new_empty(0, like.numel())
        self.changes = like.new_empty(0, like.numel())
        self.products = like.new_empty(0, 0)  # s_i . y_j where j >= i, 0 elsewhere

    def add(self, step: Tensor, change: Tensor) -> None:
        kept = slice(max(0, len(self.steps) + 1 - _HISTORY), None)
        self.steps = torch.cat([self.steps[kept], step.view(1, -1)])
        self.changes = torch.cat([self.changes[kept], change.view(1, -1)])
        self.products = torch.nn.functional.pad(self.products[kept, kept], (0, 1, 0, 1))
        self.products[:, -1] = self.steps @ change.flatten()

    def direction(self, gradient: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the two-loop recursion around `solve`; each loop solves a triangular system."""
        if not len(self.steps):
            # Downhill: at a kink, such as a norm's at zero, other directions may lead up.
            # No further than 1, and no further than the features' size allows.
            size = gradient.norm().clamp_min(1e-150)
            return gradient * torch.minimum((gradient * solve(gradient)).sum() / size**2, 1 / size)
        q = gradient.flatten()
        factors = torch.linalg.solve_triangular(self.products, (self.steps @ q)[:, None], upper=True)[:, 0]
        r = solve((q - factors @ self.changes).view_as(gradient)).flatten()
        last = self.changes[-1]
        r = r * (self.products[-1, -1] / (last @ solve(last.view_as(gradient)).flatten()))
        lack = self.products.diagonal() * factors - self.changes @ r
        more = torch.linalg.solve_triangular(self.products.T, lack[:, None], upper=False)[:, 0]
        return (r + more @ self.steps).view_as(gradient)


def _minimize(
    loss: SoftmaxLoss, metric: LeadingCurvature, point: Tensor, *, max_iterations: int, tolerance: float
) -> tuple[Tensor, float, int, bool]:
    """Return point, value, iterations, and whether the estimated gap is below `tolerance` times the value."""
    value, gradient = loss(point)
    at_zero = loss.penalty.kind == "norm" and not point[:, :-1].any()
    if at_zero and float(gradient[:, :-1].norm()) <= loss.penalty.strength:
        # The pull of the data is weaker than the penalty's: W = 0 is the minimum.
        return point, value, 0, True
    history, believed = _History(point), False
    for iteration in range(max_iterations + 1):
        ridge = loss.penalty.curvature(point[:, :-1])
        direction = history.direction(gradient, lambda g: metric.solve(g, ridge=ridge))  # noqa: B023
        slope = float((gradient * direction).sum())
        limit = tolerance * max(abs(value), _NEGLIGIBLE)
        close = slope / 2 <= limit
        if close and (believed or metric.least_gap(gradient, ridge=ridge) <= 30 * limit):
            return point, value, iteration, True
        if iteration == max_iterations:
            break
        found = None if close else _line_search(loss, point, value, direction, slope)
        if found is None and not len(history.steps):
            return point, value, iteration, True  # rounding hides any further progress
        if found is None:
            # What was learned of the curvature before does not hold here.
            history, believed, tolerance = _History(point), close, tolerance / 10 if close else tolerance
            continue
        candidate, value, new_gradient = found
        step, change = candidate - point, new_gradient - gradient
        if float((step * change).sum()) > _LINEAR * float(gradient.norm()) * float(step.norm()):
            history.add(step, change)
        else:
            history = _History(point)  # linear here: the curvature elsewhere would make steps far too short
        point, gradient = candidate, new_gradient
    return point, value, max_iterations, False


def _line_search(
    loss: SoftmaxLoss, point: Tensor, value: float, direction: Tensor, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """Return a point against the direction that is low enough, its value and gradient; None without one."""
    length = 1.0
    while length >= _SMALLEST_STEP:
        candidate = point - length * direction
        new_value, gradient = loss(candidate)
        drop = length * slope
        if new_value <= value - _SUFFICIENT * drop:
            return candidate, new_value, gradient
        excess = new_value - value + drop
        length *= min(0.5, max(0.1, drop / (2 * excess))) if excess > 0 else 0.5
    return None


def fit_softmax(
    features: Tensor,
    labels: Tensor,
    *,
    n_classes: int,
    penalty: Penalty,
    max_iterations: int = 1000,
    tolerance: float = 3e-7,
    start: Solution | None = None,
    kept: Tensor | None = None,
) -> Solution:
    """Minimize mean cross-entropy + penalty; every class must occur among the labels.

    `tolerance` bounds the estimated distance from the minimum, relative to the objective. `kept` [n] selects
    some of the rows.
    """
    # The small operations between two passes stay on one thread: their bits would depend on the number.
    with one_thread() as threads:
        x = features.double() if features.numel() <= _SMALL else features
        n, d = x.shape
        # A fixed order: the result depends on the data alone.
        sample = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:_SAMPLE].to(x.device)
        mean = _middle(x, x[sample].double())
        shift = torch.zeros_like(mean)
        if x.dtype != torch.float64 and _is_steep(x[sample].double(), mean):
            near = mean.to(x.dtype)  # differences from what is near lose nothing
            shift = near.double()
            x, mean = x - near, mean - shift
        if start is None or not start.weight.any():
            theta = _prior(labels if kept is None else labels[kept], d, n_classes)
        else:
            theta = torch.cat([start.weight, (start.bias + start.weight @ (mean + shift))[:, None]], 1)
        if theta.numel() <= 2**18:
            theta = theta.cpu()  # so small that the optimizer is faster here than by calls to a GPU
        metric = LeadingCurvature((x[sample] - mean.to(x.dtype)).to(theta.device), n_classes=n_classes)
        loss = SoftmaxLoss(x, labels, mean=mean, penalty=penalty, kept=kept, threads=threads)
        point, value, iterations, converged = _minimize(
            loss, metric, theta, max_iterations=max_iterations, tolerance=tolerance / 3
        )
        weight, bias = point[:, :-1].to(x.device), point[:, -1].to(x.device)
        bias = bias - weight @ (mean + shift)
        return Solution(weight, bias, value, iterations, loss.evaluations, converged)


def _middle(x: Tensor, rows: Tensor) -> Tensor:
    """Return the mean, by which features are shifted, or the median of some rows where others distort it.

    One row that is very far from all others does so, and then the bias could not change without the weights.
    """
    mean = Centring.of(x).mean
    middle = rows.median(0).values
    distance = (rows - middle).norm(dim=1).median()
    return mean if float((mean - middle).norm()) <= 2 * float(distance) else middle


def _is_steep(rows: Tensor, mean: Tensor) -> bool:
    """Tell whether rows differ so little, for their size, that their products lose too many digits."""
    return 0 < _STEEP * float((rows - mean).norm(dim=1).median()) < float(mean.norm())


def _prior(labels: Tensor, d: int, n_classes: int) -> Tensor:
    """Return W = 0 and the bias that fits the class frequencies."""
    theta = torch.zeros(n_classes, d + 1, dtype=torch.float64, device=labels.device)
    theta[:, -1] = (torch.bincount(labels, minlength=n_classes).double() / len(labels)).log()
    theta[:, -1] -= theta[:, -1].mean()
    return theta
