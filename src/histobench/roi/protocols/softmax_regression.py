"""Multinomial logistic regression on many features, in few passes over them.

The objective is mean cross-entropy + penalty(W); the bias is free. Plain L-BFGS needs hundreds of passes, as
the spectrum of a network's features decays over orders of magnitude. Here L-BFGS works in a metric (see
`curvature`): the leading directions of the features, which cost next to nothing, and where these do not
suffice an approximate Hessian, taken from the least decided rows. With few dimensions the latter is cheap,
too, and is used from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from histobench.core.devices import one_thread, spread
from histobench.roi.protocols.neighbours import Centring, row_chunks

# L-BFGS with a metric of the caller's choice.

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
    """Where a minimisation ended."""

    point: Tensor
    value: float
    gradient: Tensor
    iterations: int
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
            return Descent(point, value, gradient, iteration, converged)
        while True:
            found = _search(evaluate, point, value, direction, slope)
            if found is not None:
                break
            if not len(history.steps):
                # Rounding hides any further progress.
                return Descent(point, value, gradient, iteration, converged=True)
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


# Approximate Hessians of softmax regression, as metrics for L-BFGS.

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
        """Inverse of the block times the gradient [c, d + 1], or those of parts [c, parts, d + 1]."""
        g = centred(gradient)
        weight = g[..., :-1]
        flat = weight.reshape(-1, weight.shape[-1]).T.to(self.factor.dtype)
        out = torch.empty_like(g)
        out[..., :-1] = torch.cholesky_solve(flat, self.factor).T.reshape(weight.shape)
        out[..., -1] = g[..., -1] / self.bias.view(-1, *[1] * (g.ndim - 2))
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


#: Bytes of features per block. On the CPU: read once, used for the logits and for the gradient. On a GPU: few
#: operations, and sums of float32 that are not too long.
_BLOCK = {"cpu": 2**23, "cuda": 2**27}
_PARTS = 16  # at most: more only take turns with Python's lock
_MANY = 4  # threads above which small operations wait for that lock longer than they take
_FEW = 2**18  # parameters up to which the optimizer's own work is faster on the CPU than by calls to a GPU
_SMALL = 2**20  # up to this many numbers the work is done in float64
_REFRESH = 10  # iterations after which the metric is taken again
_START = (8, 1e-2)  # iterations and tolerance on a part of the rows
_NARROW = 256  # dimensions up to which an approximate Hessian costs little
_LOOKED_AT = 256  # rows that tell the leading directions of the features
_MISLED = 10  # times the tolerance that they may seem to be from the minimum and still be believed
_STEEP = 100  # times as far from zero as from each other: rows are shifted before they are multiplied
_ROUGH = 100  # iterations after which these directions were not enough


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

    def of_parts(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Values [parts] and gradients of several W at once, [c, parts, d]."""
        norm = weight.square().sum((0, 2)).sqrt()
        if self.kind == "squared":
            return self.strength * norm.square() / 2, self.strength * weight
        return self.strength * norm, self.strength * weight / norm.clamp_min(1e-30)[:, None]

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
        self,
        features: Tensor,
        labels: Tensor,
        *,
        mean: Tensor,
        n_classes: int,
        penalty: Penalty,
        threads: int | None = None,
    ) -> None:
        """`threads` share an evaluation; as many as torch may use unless that is said."""
        self.features, self.labels, self.mean = features, labels, mean
        self.n_classes, self.penalty, self.threads = n_classes, penalty, threads
        self.evaluations = 0
        self.ridge = 0.0  # curvature of the penalty where the last evaluation was

    def _logits(self, theta: Tensor) -> Callable[[slice], Tensor]:
        """What gives the logits [r, c] of some rows, in the features' precision."""
        weight, bias = theta[:, :-1], theta[:, -1]
        dtype = self.features.dtype
        shift, weight = (bias - weight @ self.mean).to(dtype), weight.to(dtype).T
        return lambda rows: torch.addmm(shift, self.features[rows], weight)

    def probabilities(self, theta: Tensor) -> Tensor:
        """Class probabilities of all rows [n, c]."""
        logits = self._logits(theta)
        return torch.cat([_log_probabilities(logits(part)).exp_().T for part in self._parts()])

    def _parts(self) -> list[slice]:
        n, d = self.features.shape
        each = d * self.features.element_size()
        block = _BLOCK.get(self.features.device.type, _BLOCK["cuda"])
        return list(row_chunks(n, each, max(block, n * each // _PARTS)))

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        """Objective and gradient at parameters [c, d + 1], which may be on another device than the features.

        All that comes back from a GPU comes in one transfer, the only time that it is waited for.
        """
        here = theta.to(self.features.device)
        logits, device, parts = self._logits(here), str(here.device), self._parts()

        def settled(product: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
            log_p = _log_probabilities(product)
            label = self.labels[None, part]
            loss = log_p.gather(0, label).sum(dtype=torch.float64)
            residual = log_p.exp_()
            residual.scatter_add_(0, label, torch.full_like(label, -1, dtype=residual.dtype))
            return loss, residual, residual.sum(1, dtype=torch.float64)

        def work(part: slice) -> tuple[Tensor, Tensor, Tensor]:
            loss, residual, sums = settled(logits(part), part)
            return loss, residual @ self.features[part], sums

        # Summed in the order of the parts, so that the result does not depend on the threads.
        if self.threads is not None and self.threads > _MANY and device == "cpu":
            products = spread(logits, parts, threads=self.threads)
            between = [settled(*each) for each in zip(products, parts, strict=True)]
            pulls = spread(
                lambda each: between[each][1] @ self.features[parts[each]],
                range(len(parts)),
                threads=self.threads,
            )
            found = [(loss, pull, sums) for (loss, _, sums), pull in zip(between, pulls, strict=True)]
        else:
            found = spread(work, parts, device=device, threads=self.threads)
        loss = -torch.stack([part[0] for part in found]).sum()
        pulled = torch.zeros_like(here)
        for _, pull, sums in found:
            pulled[:, :-1] += pull
            pulled[:, -1] += sums
        pulled[:, :-1] -= pulled[:, -1:] * self.mean
        n = len(self.features)
        both = torch.cat([pulled.flatten(), loss.view(1)]).to(theta.device)
        gradient = both[:-1].view_as(theta).div_(n)
        gradient[:, :-1] += self.penalty.gradient(theta[:, :-1])
        self.evaluations += 1
        self.ridge = self.penalty.curvature(theta[:, :-1])
        return float(both[-1]) / n + self.penalty.value(theta[:, :-1]), gradient


def _log_probabilities(logits: Tensor) -> Tensor:
    """Logarithms of the class probabilities [c, r] of some rows, from their logits [r, c]."""
    # Over classes one by one: several times faster than over the few classes of each row.
    return torch.log_softmax(logits.T.contiguous(), dim=0)


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
    if n < d and n <= _NARROW:
        # Fewer rows than dimensions: the minimiser lies in the span of the rows, and so does the work.
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
    # A fixed order: the result depends on the data alone.
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(x.device)
    mean = _middle(x, order)
    # Between the passes there are many small operations, whose threads would mostly wait for each other.
    with one_thread() as threads:
        return _fit(x, labels, mean, order, n_classes, penalty, max_iterations, tolerance, start, threads)


def _fit(
    x: Tensor,
    labels: Tensor,
    mean: Tensor,
    order: Tensor,
    n_classes: int,
    penalty: Penalty,
    max_iterations: int,
    tolerance: float,
    start: Solution | None,
    threads: int,
) -> Solution:
    d = x.shape[1]
    if x.dtype != torch.float64 and _is_steep(x[order[:_LOOKED_AT]], mean):
        near = mean.to(x.dtype)  # differences from what is near lose nothing
        far = near.double()
        if start is not None:
            start = replace(start, bias=start.bias + start.weight @ far)
        rest = (n_classes, penalty, max_iterations, tolerance, start, threads)
        found = _fit(x - near, labels, mean - far, order, *rest)
        return replace(found, bias=found.bias - found.weight @ far)
    loss = SoftmaxLoss(x, labels, mean=mean, n_classes=n_classes, penalty=penalty, threads=threads)
    theta = _prior(labels, d, n_classes) if start is None else _parameters(start, mean)
    if theta.numel() <= _FEW:
        theta = theta.cpu()
    known = loss(theta)
    if start is None and penalty.kind == "norm" and float(known[1][:, :-1].norm()) <= penalty.strength:
        # The pull of the data is weaker than the penalty's: W = 0 is the minimum.
        return _solution(Descent(theta, *known, 0, True), mean, loss)
    done = 0
    if d > _NARROW:
        some = (x[order[:_LOOKED_AT]] - mean.to(x.dtype)).to(theta.device)
        leading = LeadingCurvature(some, n_classes=n_classes)
        descent = minimise(
            loss,
            lambda gradient: leading.solve(gradient, ridge=loss.ridge),
            theta,
            max_iterations=min(_ROUGH, max_iterations),
            # What it knows of the curvature says less than a Hessian how far the minimum is.
            tolerance=tolerance / 3,
            known=known,
            to_scale=False,
        )
        done, theta, known = descent.iterations, descent.point, (descent.value, descent.gradient)
        gap = leading.least_gap(descent.gradient, ridge=loss.ridge)
        misled = gap > _MISLED * tolerance * max(abs(descent.value), NEGLIGIBLE)
        if (descent.converged and not misled) or done >= max_iterations:
            return _solution(descent, mean, loss, iterations=done)
    elif start is None:
        theta = _approach(loss, theta, order, max_iterations)
        known = loss(theta)
    while True:
        descent = minimise(
            loss,
            _metric(loss, theta),
            theta,
            max_iterations=min(_REFRESH, max_iterations - done),
            tolerance=tolerance,
            known=known,
        )
        done += descent.iterations
        theta, known = descent.point, (descent.value, descent.gradient)
        if descent.converged or done >= max_iterations:
            return _solution(descent, mean, loss, iterations=done)


# Many fits on nearly the same rows: all rows but a few, for each of several parts.

_PART_ITERATIONS = 60  # of all parts at once; what is not there by then is fitted alone
_PART_HISTORY = 10
_PART_NUMBERS = 2**19, 2**24  # parameters, and logits, of the parts that are fitted at once


def fit_parts(
    features: Tensor,
    labels: Tensor,
    kept: Tensor,
    *,
    n_classes: int,
    penalty: Penalty,
    start: Solution,
    max_iterations: int = 1000,
    tolerance: float = 3e-7,
) -> list[Solution]:
    """The minimiser on the rows `kept` [parts, n] of each part, which must have all classes.

    All parts go on from `start`, the minimiser on all rows, by L-BFGS in the metric that is right there.
    Their products with the features are one matrix product, several times faster than one for each part.
    """
    x = features.double() if features.numel() <= _SMALL else features
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    mean = _middle(x, order)
    found: list[Solution | None] = [None] * len(kept)
    if len(kept) and float(start.weight.norm()) > 0 and not _is_steep(x[order[:_LOOKED_AT]], mean):
        loss = SoftmaxLoss(x, labels, mean=mean, n_classes=n_classes, penalty=penalty)
        theta = _parameters(start, mean)
        metric = SharedCurvature(
            x - mean.to(x.dtype),
            loss.probabilities(theta),
            total=float(len(x)),
            ridge=penalty.curvature(start.weight),
        )
        most = min(_PART_NUMBERS[0] // theta.numel(), _PART_NUMBERS[1] // (n_classes * len(x)))
        for part in torch.arange(len(kept)).split(max(1, most)):
            rows = kept[part].to(x.device)
            many = PartsLoss(x, labels, rows, mean=mean, n_classes=n_classes, penalty=penalty)
            # The metric is of all classes alike: the distance that it tells is right up to a factor.
            solutions = _fit_together(many, metric, theta, max_iterations, tolerance / 3)
            found[int(part[0]) : int(part[-1]) + 1] = solutions
    return [
        solution
        or fit_softmax(
            features[rows],
            labels[rows],
            n_classes=n_classes,
            penalty=penalty,
            max_iterations=max_iterations,
            tolerance=tolerance,
        )
        for solution, rows in zip(found, kept.to(features.device), strict=True)
    ]


class PartsLoss:
    """Objectives and gradients over the rows of several parts; parameters are [classes, parts, d + 1]."""

    def __init__(
        self, x: Tensor, labels: Tensor, kept: Tensor, *, mean: Tensor, n_classes: int, penalty: Penalty
    ) -> None:
        self.x, self.labels, self.mean, self.penalty = x, labels, mean, penalty
        self.kept, self.counts = kept.to(x.dtype), kept.sum(1).double()
        self.truth = torch.nn.functional.one_hot(labels, n_classes).T.to(x.dtype)[:, None]  # [c, 1, n]

    def __call__(self, theta: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Values [parts] and gradients [c, parts, d + 1] of some of the parts."""
        weight, bias = theta[..., :-1], theta[..., -1]
        shift = (bias - weight @ self.mean).to(self.x.dtype)
        logits = weight.to(self.x.dtype).flatten(0, 1) @ self.x.T
        log_p = torch.log_softmax(logits.view(*shift.shape, -1).add_(shift[..., None]), dim=0)
        kept, counts = self.kept[parts], self.counts[parts]
        value = -((log_p * self.truth).sum(0) * kept).sum(1, dtype=torch.float64) / counts
        residual = (log_p.exp_() - self.truth) * kept
        sums = residual.sum(2, dtype=torch.float64)
        gradient = torch.empty_like(theta)
        gradient[..., :-1] = (residual.flatten(0, 1) @ self.x).view_as(weight)
        gradient[..., :-1] -= sums[..., None] * self.mean
        gradient[..., -1] = sums
        gradient /= counts[:, None]
        penalty, pull = self.penalty.of_parts(weight)
        gradient[..., :-1] += pull
        return value + penalty, gradient


def _fit_together(
    loss: PartsLoss, metric: SharedCurvature, theta: Tensor, max_iterations: int, tolerance: float
) -> list[Solution | None]:
    """The minimiser of each part from the same point; None where that does not get there."""
    count = len(loss.kept)
    found: list[Solution | None] = [None] * count
    parts = torch.arange(count, device=loss.x.device)
    point = theta[:, None].repeat(1, count, 1)
    value, gradient = loss(point, parts)
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    for iteration in range(min(_PART_ITERATIONS, max_iterations) + 1):
        direction = _together(gradient, steps, changes, metric.solve)
        slope = _dots(gradient, direction)
        gap = slope / 2 / value.abs().clamp_min(NEGLIGIBLE)
        done = (gap <= tolerance) & (slope >= 0)
        for place in torch.nonzero(done).flatten().tolist():
            weight, bias = point[:, place, :-1], point[:, place, -1]
            found[int(parts[place])] = Solution(
                weight.clone(), bias - weight @ loss.mean, float(value[place]), iteration, iteration, True
            )
        # Where the direction leads up, a part is fitted alone.
        left = torch.nonzero(~done & (slope > 0)).flatten()
        if not len(left):
            break
        parts, value, slope = parts[left], value[left], slope[left]
        point, gradient, direction = point[:, left], gradient[:, left], direction[:, left]
        steps, changes = [each[:, left] for each in steps], [each[:, left] for each in changes]
        length = torch.ones_like(value)
        new_point, new_value, new_gradient = point.clone(), value.clone(), gradient.clone()
        search = torch.arange(len(parts), device=parts.device)
        while len(search):
            tried = point[:, search] - length[search, None] * direction[:, search]
            values, gradients = loss(tried, parts[search])
            drop = length[search] * slope[search]
            low = values <= value[search] - _SUFFICIENT * drop
            taken = search[low]
            new_point[:, taken], new_gradient[:, taken] = tried[:, low], gradients[:, low]
            new_value[taken] = values[low]
            excess = values - value[search] + drop
            shrink = torch.where(excess > 0, drop / (2 * excess.clamp_min(1e-300)), 0.5).clamp(0.1, 0.5)
            length[search] = torch.where(low, length[search], length[search] * shrink)
            search = search[~low & (length[search] >= _SMALLEST_STEP)]
        # A part is also fitted alone where rounding hides its progress.
        moved = torch.nonzero(length >= _SMALLEST_STEP).flatten()
        steps = [each[:, moved] for each in (*steps, new_point - point)][-_PART_HISTORY:]
        changes = [each[:, moved] for each in (*changes, new_gradient - gradient)][-_PART_HISTORY:]
        parts, value = parts[moved], new_value[moved]
        point, gradient = new_point[:, moved], new_gradient[:, moved]
    return found


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((0, 2))


def _together(gradient: Tensor, steps: list[Tensor], changes: list[Tensor], solve: Solve) -> Tensor:
    """The two-loop recursion for each part; steps without curvature are not used."""
    q = gradient.clone()
    factors = []
    for step, change in zip(reversed(steps), reversed(changes), strict=True):
        product = _dots(step, change)
        inverse = torch.where(product > 0, 1 / product.clamp_min(1e-300), 0.0)
        factor = inverse * _dots(step, q)
        q -= factor[:, None] * change
        factors.append((factor, inverse))
    r = solve(q)
    for step, change, (factor, inverse) in zip(steps, changes, reversed(factors), strict=True):
        r += (factor - inverse * _dots(change, r))[:, None] * step
    return r


def _middle(x: Tensor, order: Tensor) -> Tensor:
    """The mean, by which features are shifted; the median of some rows where others have drawn it away.

    One row that is very far from all others does so, and then the bias could not change without the weights.
    """
    mean = Centring.of(x).mean
    rows = x[order[:_LOOKED_AT]].double()
    middle = rows.median(0).values
    distance = (rows - middle).norm(dim=1).median()
    return mean if float((mean - middle).norm()) <= 2 * float(distance) else middle


def _is_steep(rows: Tensor, mean: Tensor) -> bool:
    """Whether rows differ so little, for their size, that products with them would lose too many digits."""
    distance = float((rows.double() - mean).norm(dim=1).median())
    return 0 < _STEEP * distance < float(mean.norm())


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
            threads=loss.threads,
        )
    iterations, tolerance = _START
    allowed = min(iterations, max_iterations)
    return minimise(small, _metric(small, theta), theta, max_iterations=allowed, tolerance=tolerance).point


def _metric(loss: SoftmaxLoss, theta: Tensor) -> Solve:
    """An approximate inverse Hessian at a point, applied where the features are."""
    curvature = _curvature(loss, theta.to(loss.features.device))
    return lambda gradient: curvature.solve(gradient.to(loss.features.device)).to(gradient.device)


def _curvature(loss: SoftmaxLoss, theta: Tensor) -> CoupledCurvature:
    """The metric at a point, from the rows that are least decided: the others have next to no curvature."""
    n, d = loss.features.shape
    p = loss.probabilities(theta)
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
    point = descent.point.to(mean.device)
    weight = point[:, :-1]
    bias = point[:, -1] - weight @ mean
    return Solution(weight, bias, descent.value, iterations, loss.evaluations, descent.converged)
