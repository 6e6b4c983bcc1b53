"""Multinomial logistic regression on many features, in few passes over them.

The objective is mean cross-entropy + penalty(W); the bias is free. Plain L-BFGS needs hundreds of passes, as
the spectrum of a network's features decays over orders of magnitude. Here L-BFGS works in the metric of an
approximate Hessian (see `curvature`), taken from the least decided rows, and starts from the solution of a
part. Where the spectrum is flat, as that of noise is, a metric would gain nothing, and with few rows it costs
more than the passes that it saves: there it is plain L-BFGS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from histobench.core.threads import spread
from histobench.roi.protocols.centring import Centring, row_chunks
from histobench.roi.protocols.curvature import CoupledCurvature
from histobench.roi.protocols.lbfgs import Descent, minimise

_BLOCK = 2**23  # bytes of features per block: read once, used for the logits and for the gradient
_SMALL = 2**20  # up to this many numbers the work is done in float64
_REFRESH = 10  # iterations after which the metric is taken again
_START = (8, 1e-2)  # iterations and tolerance on a part of the rows
_ENOUGH = 8  # rows per dimension from which a metric is cheap beside the passes that it saves
_LOOKED_AT = 512  # rows from which the shape of the features is told
_FLAT = 0.5  # of the most directions that these could show; features of networks show a tenth


@dataclass(frozen=True)
class Penalty:
    """`strength` * ||W|| (the norm itself) or `strength` * ||W||^2 / 2, Frobenius norms without the bias."""

    kind: Literal["norm", "squared"]
    strength: float

    def value(self, weight: Tensor) -> float:
        """The penalty of W."""
        norm = float(weight.norm())
        return self.strength * (norm if self.kind == "norm" else norm * norm / 2)

    def gradient(self, weight: Tensor) -> Tensor:
        """Its gradient; 0 at W = 0, where the norm has none."""
        if self.kind == "squared":
            return self.strength * weight
        return self.strength * weight / weight.norm().clamp_min(1e-30)

    def curvature(self, weight: Tensor) -> float:
        """Its second derivative across the direction of W."""
        if self.kind == "squared":
            return self.strength
        return self.strength / max(float(weight.norm()), 1e-2)

    def ray(self, weight: Tensor) -> Tensor | None:
        """The unit direction in which it grows without curvature."""
        norm = float(weight.norm())
        return weight / norm if self.kind == "norm" and norm > 0 else None


@dataclass(frozen=True)
class Solution:
    """The minimiser: logits = x W^T + b."""

    weight: Tensor  # [c, d] float64
    bias: Tensor  # [c] float64
    objective: float
    iterations: int  # on all rows
    evaluations: int  # passes over all rows
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        """Logits [n, c] in float64."""
        return features.double() @ self.weight.T + self.bias

    def probabilities(self, features: Tensor) -> Tensor:
        """Class probabilities [n, c] in float64."""
        return torch.softmax(self.logits(features), dim=1)


class SoftmaxLoss:
    """Objective and gradient over some rows; features are shifted by a mean, which the free bias takes up."""

    def __init__(
        self, features: Tensor, labels: Tensor, *, mean: Tensor, n_classes: int, penalty: Penalty
    ) -> None:
        self.features, self.labels, self.mean = features, labels, mean
        self.n_classes, self.penalty = n_classes, penalty
        self.evaluations = 0

    def _affine(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets [c] and weights [d, c] of the logits, in the features' precision."""
        weight, bias = theta[:, :-1], theta[:, -1]
        dtype = self.features.dtype
        return (bias - weight @ self.mean).to(dtype), weight.T.to(dtype)

    def logits(self, theta: Tensor, rows: slice | Tensor) -> Tensor:
        """Logits of some rows, in the features' precision."""
        shift, weight = self._affine(theta)
        return torch.addmm(shift, self.features[rows], weight)

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        """Objective and gradient at parameters [c, d + 1]."""
        n, d = self.features.shape
        shift, weight = self._affine(theta)

        def work(part: slice) -> tuple[Tensor, Tensor, Tensor]:
            log_p = torch.log_softmax(torch.addmm(shift, self.features[part], weight), dim=1)
            label = self.labels[part, None]
            loss = log_p.gather(1, label).sum(dtype=torch.float64)
            residual = log_p.exp_()
            residual.scatter_add_(1, label, torch.full_like(label, -1, dtype=residual.dtype))
            return loss, residual.T @ self.features[part], residual.sum(0, dtype=torch.float64)

        # Summed in the order of the parts, so that the result does not depend on the threads.
        parts = list(row_chunks(n, d * self.features.element_size(), _BLOCK))
        found = spread(work, parts, device=str(theta.device))
        loss = -torch.stack([part[0] for part in found]).sum()
        gradient = torch.zeros_like(theta)
        for _, pull, sums in found:
            gradient[:, :-1] += pull
            gradient[:, -1] += sums
        gradient[:, :-1] -= gradient[:, -1:] * self.mean
        gradient /= n
        gradient[:, :-1] += self.penalty.gradient(theta[:, :-1])
        self.evaluations += 1
        return float(loss) / n + self.penalty.value(theta[:, :-1]), gradient


def fit_softmax(
    features: Tensor,
    labels: Tensor,
    *,
    n_classes: int,
    penalty: Penalty,
    max_iterations: int = 1000,
    tolerance: float = 3e-7,
    start: Solution | None = None,
) -> Solution:
    """Minimise mean cross-entropy + penalty; every class must occur among the labels.

    `tolerance` bounds the estimated distance from the minimum, relative to the objective.
    """
    x = features.double() if features.numel() <= _SMALL else features
    n, d = x.shape
    if n < d:
        return _fit_in_row_space(x, labels, n_classes, penalty, max_iterations, tolerance, start)
    mean = Centring.of(x).mean
    # A fixed order: the result depends on the data alone.
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(x.device)
    loss = SoftmaxLoss(x, labels, mean=mean, n_classes=n_classes, penalty=penalty)
    theta = _prior(labels, d, n_classes) if start is None else _parameters(start, mean)
    if start is None:
        known = loss(theta)
        if penalty.kind == "norm" and float(known[1][:, :-1].norm()) <= penalty.strength:
            # The pull of the data is weaker than the penalty's: W = 0 is the minimum.
            return _solution(Descent(theta, *known, 0, 0.0, True), mean, loss)
        if features.numel() > _SMALL and (
            n < _ENOUGH * d or _is_flat(x[order[:_LOOKED_AT]] - mean.to(x.dtype))
        ):
            # What L-BFGS alone knows of the curvature says less than the metric how far the minimum is.
            plain = minimise(
                loss, None, theta, max_iterations=max_iterations, tolerance=tolerance / 3, known=known
            )
            return _solution(plain, mean, loss, iterations=plain.iterations)
        theta = _approach(loss, theta, order, max_iterations)
    done = 0
    descent = None
    while True:
        metric = _curvature(loss, theta)
        descent = minimise(
            loss,
            metric.solve,
            theta,
            max_iterations=min(_REFRESH, max_iterations - done),
            tolerance=tolerance,
            known=None if descent is None else (descent.value, descent.gradient),
        )
        done += descent.iterations
        theta = descent.point
        if descent.converged or done >= max_iterations:
            return _solution(descent, mean, loss, iterations=done)


def _fit_in_row_space(
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    penalty: Penalty,
    max_iterations: int,
    tolerance: float,
    start: Solution | None,
) -> Solution:
    """Fewer rows than dimensions: the minimiser lies in the span of the rows, and so does the work."""
    mean = Centring.of(x).mean
    basis, coordinates = torch.linalg.qr((x.double() - mean).T)  # [d, n], [n, n]
    if start is not None:
        start = replace(start, weight=start.weight @ basis, bias=start.bias + start.weight @ mean)
    inside = fit_softmax(
        coordinates.T.contiguous(),
        labels,
        n_classes=n_classes,
        penalty=penalty,
        max_iterations=max_iterations,
        tolerance=tolerance,
        start=start,
    )
    weight = inside.weight @ basis.T
    return replace(inside, weight=weight, bias=inside.bias - weight @ mean)


def _sample_size(n: int, d: int) -> int:
    """Rows that a first solution or the curvature is taken from."""
    return min(n, max(4 * d, n // 8))


def _approach(loss: SoftmaxLoss, theta: Tensor, order: Tensor, max_iterations: int) -> Tensor:
    """A starting point: the solution of a part of the rows, coarsely."""
    n, d = loss.features.shape
    part = order[: _sample_size(n, d)]
    small = loss
    if len(part) <= n // 2:
        small = SoftmaxLoss(
            loss.features[part],
            loss.labels[part],
            mean=loss.mean,
            n_classes=loss.n_classes,
            penalty=loss.penalty,
        )
    iterations, tolerance = _START
    metric = _curvature(small, theta)
    allowed = min(iterations, max_iterations)
    return minimise(small, metric.solve, theta, max_iterations=allowed, tolerance=tolerance).point


def _is_flat(rows: Tensor) -> bool:
    """Whether rows [m, d] around their mean point into nearly as many directions as noise would.

    A metric then gains nothing over the identity: all directions are alike already.
    """
    m, d = rows.shape
    gram = (rows @ rows.T).double()
    directions = float(gram.trace().square() / gram.square().sum().clamp_min(1e-300))
    return directions > _FLAT * m * d / (m + d)


def _curvature(loss: SoftmaxLoss, theta: Tensor) -> CoupledCurvature:
    """The metric at a point, from the rows that are least decided: the others have next to no curvature."""
    n, d = loss.features.shape
    parts = row_chunks(n, d * loss.features.element_size(), _BLOCK)
    p = torch.cat([torch.softmax(loss.logits(theta, part), dim=1) for part in parts])
    spread = 1 - p.square().sum(1)
    heavy = torch.topk(spread, _sample_size(n, d)).indices
    share = float(spread[heavy].sum() / spread.sum().clamp_min(1e-30))
    weight = theta[:, :-1]
    return CoupledCurvature(
        loss.features[heavy] - loss.mean.to(loss.features.dtype),
        p[heavy],
        total=n * share,
        ridge=loss.penalty.curvature(weight),
        ray=loss.penalty.ray(weight),
    )


def _prior(labels: Tensor, d: int, n_classes: int) -> Tensor:
    """W = 0 and the bias that fits the class frequencies."""
    theta = torch.zeros(n_classes, d + 1, dtype=torch.float64, device=labels.device)
    frequency = torch.bincount(labels, minlength=n_classes).double() / len(labels)
    theta[:, -1] = frequency.log()
    theta[:, -1] -= theta[:, -1].mean()
    return theta


def _parameters(solution: Solution, mean: Tensor) -> Tensor:
    bias = solution.bias + solution.weight @ mean
    return torch.cat([solution.weight, bias[:, None]], 1)


def _solution(descent: Descent, mean: Tensor, loss: SoftmaxLoss, *, iterations: int = 0) -> Solution:
    weight = descent.point[:, :-1]
    bias = descent.point[:, -1] - weight @ mean
    return Solution(weight, bias, descent.value, iterations, loss.evaluations, descent.converged)
