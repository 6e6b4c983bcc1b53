"""L-BFGS with a metric of the caller's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_HISTORY = 20
_SUFFICIENT = 1e-4  # Armijo
_SMALLEST_STEP = 1e-6
_LINEAR = 1e-10  # of a gradient: what it changes by where the function is linear but for rounding
#: A value below this is as good as zero: separable data would otherwise be fitted to the last bit.
NEGLIGIBLE = 1e-3

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
Solve = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Descent:
    """Where a minimisation ended; `decrement` estimates how far above the minimum that is."""

    point: Tensor
    value: float
    gradient: Tensor
    iterations: int
    decrement: float
    converged: bool


def minimise(
    evaluate: Evaluate,
    solve: Solve,
    start: Tensor,
    *,
    max_iterations: int,
    tolerance: float,
    known: tuple[float, Tensor] | None = None,
    to_scale: bool = True,
) -> Descent:
    """Minimise from `start` until the estimated gap is below `tolerance` times the value.

    `solve` applies the inverse of an approximate Hessian to a gradient: the closer, the fewer evaluations.
    Where that is right only up to a factor (not `to_scale`), the factor is taken from the last step.
    `known` is the value and gradient at `start`, where the caller has them already.
    """
    point = start
    value, gradient = known or evaluate(point)
    history = _History(start)
    for iteration in range(max_iterations + 1):
        direction = history.direction(gradient, solve, to_scale)
        slope = float((gradient * direction).sum())
        converged = slope / 2 <= tolerance * max(abs(value), NEGLIGIBLE)
        if converged or iteration == max_iterations:
            return Descent(point, value, gradient, iteration, slope / 2, converged)
        while True:
            found = _search(evaluate, point, value, direction, slope)
            if found is not None:
                break
            if not len(history.steps):
                # Rounding hides any further progress.
                return Descent(point, value, gradient, iteration, slope / 2, converged=True)
            # What was learnt of the curvature before does not hold here.
            history.forget(start)
            direction = history.direction(gradient, solve, to_scale)
            slope = float((gradient * direction).sum())
        candidate, value, new_gradient = found
        history.add(candidate - point, new_gradient - gradient, smallest=_LINEAR * float(gradient.norm()))
        point, gradient = candidate, new_gradient
    raise AssertionError("unreachable: the loop returns at its last iteration")


def _search(
    evaluate: Evaluate, point: Tensor, value: float, direction: Tensor, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """A point against the direction that is low enough, its value and gradient; None where there is none."""
    length = 1.0
    while length >= _SMALLEST_STEP:
        candidate = point - length * direction
        new_value, gradient = evaluate(candidate)
        if new_value <= value - _SUFFICIENT * length * slope:
            return candidate, new_value, gradient
        length *= _shrink(value, new_value, slope * length)
    return None


def _shrink(value: float, new_value: float, drop: float) -> float:
    """Factor to the minimum of the parabola through both values, kept between 0.1 and 0.5."""
    excess = new_value - value + drop
    return min(0.5, max(0.1, drop / (2 * excess))) if excess > 0 else 0.5


class _History:
    """The last steps s_i and the changes y_i of the gradient along them."""

    def __init__(self, like: Tensor) -> None:
        self.forget(like)

    def forget(self, like: Tensor) -> None:
        """Begin anew."""
        self.steps = like.new_empty(0, like.numel())
        self.changes = like.new_empty(0, like.numel())
        self.products = like.new_empty(0, 0)  # s_i . y_j where j >= i, 0 elsewhere

    def add(self, step: Tensor, change: Tensor, *, smallest: float) -> None:
        """Remember a step; forget all where the gradient changed by less than `smallest` along it.

        The function is linear there, and steps that its curvature elsewhere allows would be far too short.
        """
        if float((step * change).sum()) <= smallest * float(step.norm()):
            self.forget(step)
            return
        kept = slice(max(0, len(self.steps) + 1 - _HISTORY), None)
        self.steps = torch.cat([self.steps[kept], step.view(1, -1)])
        self.changes = torch.cat([self.changes[kept], change.view(1, -1)])
        self.products = torch.nn.functional.pad(self.products[kept, kept], (0, 1, 0, 1))
        self.products[:, -1] = self.steps @ change.flatten()

    def direction(self, gradient: Tensor, solve: Solve, to_scale: bool) -> Tensor:
        """The two-loop recursion around `solve`; each loop is the solution of a triangular system."""
        if not len(self.steps):
            # Without a scale downhill: at a kink, such as a norm's at zero, other directions may lead up.
            return solve(gradient) if to_scale else gradient / gradient.norm().clamp_min(1e-30)
        q = gradient.flatten()
        factors = torch.linalg.solve_triangular(self.products, (self.steps @ q)[:, None], upper=True)[:, 0]
        q = q - factors @ self.changes
        r = solve(q.view_as(gradient)).flatten()
        if not to_scale:
            last = self.changes[-1]
            r = r * (self.products[-1, -1] / (last @ solve(last.view_as(gradient)).flatten()))
        lack = self.products.diagonal() * factors - self.changes @ r
        more = torch.linalg.solve_triangular(self.products.T, lack[:, None], upper=False)[:, 0]
        return (r + more @ self.steps).view_as(gradient)
