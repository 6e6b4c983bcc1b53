"""L-BFGS with a metric of the caller's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

_HISTORY = 20
_SUFFICIENT = 1e-4  # Armijo
_SMALLEST_STEP = 1e-6
#: A value below this is as good as zero: separable data would otherwise be fitted to the last bit.
_NEGLIGIBLE = 1e-3


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
    evaluate: Callable[[Tensor], tuple[float, Tensor]],
    solve: Callable[[Tensor], Tensor] | None,
    start: Tensor,
    *,
    max_iterations: int,
    tolerance: float,
    known: tuple[float, Tensor] | None = None,
) -> Descent:
    """Minimise from `start` until the estimated gap is below `tolerance` times the value.

    `solve` applies the inverse of an approximate Hessian to a gradient: the closer, the fewer evaluations.
    None stands for a multiple of the identity, taken from the last step.
    `known` is the value and gradient at `start`, where the caller has them already.
    """
    point = start
    value, gradient = known or evaluate(point)
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    for iteration in range(max_iterations + 1):
        direction = _direction(gradient, steps, changes, solve)
        slope = float((gradient * direction).sum())
        converged = slope / 2 <= tolerance * max(abs(value), _NEGLIGIBLE)
        if converged or iteration == max_iterations:
            return Descent(point, value, gradient, iteration, slope / 2, converged)
        length = 1.0
        while True:
            candidate = point - length * direction
            new_value, new_gradient = evaluate(candidate)
            if new_value <= value - _SUFFICIENT * length * slope:
                break
            length *= _shrink(value, new_value, slope * length)
            if length < _SMALLEST_STEP:
                # Rounding hides any further progress.
                return Descent(point, value, gradient, iteration, slope / 2, converged=True)
        step, change = candidate - point, new_gradient - gradient
        if float((step * change).sum()) > 1e-12 * float(step.norm() * change.norm()):
            steps.append(step)
            changes.append(change)
            del steps[:-_HISTORY], changes[:-_HISTORY]
        point, value, gradient = candidate, new_value, new_gradient
    raise AssertionError("unreachable: the loop returns at its last iteration")


def _shrink(value: float, new_value: float, drop: float) -> float:
    """Factor to the minimum of the parabola through both values, kept between 0.1 and 0.5."""
    excess = new_value - value + drop
    return min(0.5, max(0.1, drop / (2 * excess))) if excess > 0 else 0.5


def _direction(
    gradient: Tensor,
    steps: list[Tensor],
    changes: list[Tensor],
    solve: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """The two-loop recursion around `solve`."""
    q = gradient.clone()
    factors = []
    for step, change in zip(reversed(steps), reversed(changes), strict=True):
        factor = float((step * q).sum() / (step * change).sum())
        factors.append(factor)
        q -= factor * change
    if solve is not None:
        r = solve(q)
    elif steps:
        r = q * float((steps[-1] * changes[-1]).sum() / changes[-1].square().sum())
    else:
        r = q / q.norm().clamp_min(1e-30)
    for step, change, factor in zip(steps, changes, reversed(factors), strict=True):
        r += step * (factor - float((change * r).sum() / (step * change).sum()))
    return r
