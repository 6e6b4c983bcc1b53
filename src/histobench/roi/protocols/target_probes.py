"""Probes for targets that are not one class per image, on standardized features. The penalty is chosen on the
validation set, or else by five-fold cross-validation in which everything is learned again, by whole groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
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
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return ProbeRows(self.features[torch.from_numpy(rows)], self.truth[rows], groups)


@dataclass(frozen=True)
class TargetOutcome:
    """What a probe predicts for every test row, and what it has to say about itself (plain JSON values)."""

    predicted: Floats  # [n, columns]
    info: dict[str, Any] = field(default_factory=dict)


#: (training rows, features to predict) -> predictions for every strength [s, n, columns]
Path = Callable[[ProbeRows, Tensor], Floats]
#: (predictions [s, n, columns], truth [n, columns], rows that were held out [n]) -> loss of each strength
Loss = Callable[[Floats, Floats, NDArray[np.bool_]], Floats]


def ridge(
    train: ProbeRows, test: Tensor, *, val: ProbeRows | None = None, seed: int = 0, device: str = "cpu"
) -> TargetOutcome:
    """scikit-learn's `Ridge` on `StandardScaler` features, the penalty chosen on held-out rows."""

    path = partial(_ridge_path, device=device)
    sizes = train.features.shape
    return _chosen(train, test, path, _squared_error, "mean_squared_error", sizes, val=val, seed=seed)


def _ridge_path(train: ProbeRows, queries: Tensor, *, device: str) -> Floats:
    x, scaled = standardized(train.features, queries, device)
    n, d = x.shape
    y = torch.from_numpy(train.truth).to(x)
    middle = y.mean(0)
    # Whichever of the two matrices is smaller; both give the same predictions.
    values, vectors = torch.linalg.eigh(x.T @ x if d <= n else x @ x.T)
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
    """Features in float64 by mean and spread of the training rows; without those that never change there."""
    x = train.to(device, torch.float64)
    middle, spread = x.mean(0), x.std(0, correction=0)
    changes = spread > 1e-10 * middle.abs().clamp_min(torch.finfo(torch.float64).tiny)
    scale = torch.where(changes, 1 / spread.clamp_min(1e-300), 0.0)
    return (x - middle) * scale, (queries.to(device, torch.float64) - middle) * scale


def _squared_error(said: Floats, truth: Floats, held_out: NDArray[np.bool_]) -> Floats:
    return np.asarray(((said - truth) ** 2)[:, held_out].sum((1, 2)))


def _chosen(
    train: ProbeRows,
    test: Tensor,
    path: Path,
    loss: Loss,
    loss_name: str,
    sizes: Sequence[float],
    strengths: Sequence[float] = STRENGTHS,
    *,
    val: ProbeRows | None,
    seed: int,
) -> TargetOutcome:
    losses, chosen_on = _held_out_losses(train, path, loss, len(strengths), val=val, seed=seed)
    alphas = [math.prod(sizes, start=strength) for strength in strengths]
    best = int(np.argmin(losses))
    by_alpha = {f"{alpha:.6g}": float(value) for alpha, value in zip(alphas, losses, strict=True)}
    info = {"alpha": float(alphas[best]), "alpha_chosen_on": chosen_on, f"{loss_name}_by_alpha": by_alpha}
    return TargetOutcome(path(train, test)[best], info)


def _held_out_losses(
    train: ProbeRows, path: Path, loss: Loss, strengths: int, *, val: ProbeRows | None, seed: int
) -> tuple[Floats, str]:
    """The mean loss of every strength on rows that were not trained on, and in words which these were."""
    if val is not None:
        every = torch.cat([train.features, val.features])
        held_out = np.arange(len(every)) >= len(train.truth)
        losses = loss(path(train, every), np.concatenate([train.truth, val.truth]), held_out)
        return losses / len(val.truth), "validation set"
    parts = folds(np.zeros(len(train.truth), dtype=np.int64), train.groups, seed=seed)
    parts = [(fit, rest) for fit, rest in parts if len(fit) > 1]
    if not parts:
        # Without anything to choose by, a penalty from the middle of those that are tried.
        return np.abs(np.log10(STRENGTHS[-strengths:]) + 1), "nothing: too few training rows to hold some out"
    total = np.zeros(strengths)
    for fit, rest in parts:
        held_out = np.zeros(len(train.truth), dtype=bool)
        held_out[rest] = True
        total += loss(path(train.taken(fit), train.features), train.truth, held_out)
    by = "single rows" if train.groups is None else "whole groups"
    return total / len(train.truth), f"{len(parts)}-fold cross-validation on the training set, by {by}"


#: Weaker penalties leave a partial likelihood without a maximum, where patients are fewer than features.
_COX_STRENGTHS = STRENGTHS[4:]


def cox(
    train: ProbeRows, test: Tensor, *, val: ProbeRows | None = None, seed: int = 0, device: str = "cpu"
) -> TargetOutcome:
    """scikit-survival's `CoxPHSurvivalAnalysis(alpha)` on `StandardScaler` features: log risks.

    The penalty has the largest cross-validated partial likelihood (Verweij and van Houwelingen 1993).
    """

    path, events = partial(_cox_path, device=device), train.truth[:, 1].sum()
    choice = (_likelihood_added, "minus_log_likelihood", (events * train.features.shape[1],), _COX_STRENGTHS)
    outcome = _chosen(train, test, path, *choice, val=val, seed=seed)
    outcome.info["num_train_events"] = int(events)
    return outcome


def _likelihood_added(said: Floats, truth: Floats, held_out: NDArray[np.bool_]) -> Floats:
    others, every = RiskSets(truth[~held_out]), RiskSets(truth)
    return np.array(
        [others.log_likelihood(risk[~held_out, 0]) - every.log_likelihood(risk[:, 0]) for risk in said]
    )


class RiskSets:
    """Patients by their times: who was at risk at each event."""

    def __init__(self, truth: Floats) -> None:
        self.order = np.argsort(-truth[:, 0], kind="stable")  # latest first: the sets at risk grow
        times = truth[self.order, 0]
        self.events = np.flatnonzero(truth[self.order, 1] > 0)
        # The last place of everyone with the same time: all of them are at risk at an event of that time.
        self.last = np.searchsorted(-times, -times[self.events], side="right") - 1

    def log_likelihood(self, risk: Floats) -> float:
        eta = risk[self.order]
        top = eta.max(initial=0.0)
        at_risk = np.maximum(np.cumsum(np.exp(eta - top))[self.last], 1e-300)
        return float((eta[self.events] - np.log(at_risk) - top).sum())

    def quadratic(self, eta: Floats) -> tuple[Floats, Floats]:
        """Slope and curvature [n] of the log-likelihood / n in log risks, which are in the order of times."""
        risk = np.exp(eta)
        share, at_risk = self._shares(risk)
        used = np.zeros(len(eta))
        np.add.at(used, self.last, 1 / at_risk**2)
        slope = -share
        slope[self.events] += 1.0
        return slope / len(eta), (share - risk**2 * np.cumsum(used[::-1])[::-1]) / len(eta)

    def _shares(self, risk: Floats) -> tuple[Floats, Floats]:
        at_risk = np.maximum(np.cumsum(risk)[self.last], 1e-300)
        used = np.zeros(len(risk))
        np.add.at(used, self.last, 1 / at_risk)
        return risk * np.cumsum(used[::-1])[::-1], at_risk

    def step(self, z: Floats, weights: Floats, penalty: float) -> tuple[Floats, float]:
        """Newton's step for weights [r] on features [n, r], and how much the gradient says is to gain."""
        rows = z[self.order]
        eta = rows @ weights
        risk = np.exp(eta - eta.max(initial=0.0))
        share, at_risk = self._shares(risk)
        died = np.zeros(len(rows))
        died[self.events] = 1.0
        gradient = rows.T @ (died - share) - penalty * weights
        means = np.cumsum(risk[:, None] * rows, axis=0)[self.last] / at_risk[:, None]
        curvature = (rows * share[:, None]).T @ rows - means.T @ means
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        return step, float(gradient @ step)


def _cox_path(train: ProbeRows, queries: Tensor, *, device: str) -> Floats:
    z, others = _reduced(*standardized(train.features, queries, device))
    sets = RiskSets(train.truth)
    size = max(float(train.truth[:, 1].sum()), 1.0) * train.features.shape[1]
    weights, found = np.zeros(z.shape[1]), []
    for strength in reversed(_COX_STRENGTHS):
        weights = _newton(sets, z, weights, strength * size)
        found.append(others @ weights)
    return np.stack(found[::-1])[:, :, None]


def l2_cox(x: Floats, truth: Floats, queries: Floats, penalty: float) -> Floats:
    z, others = _reduced(torch.from_numpy(x), torch.from_numpy(queries))
    return np.asarray(others @ _newton(RiskSets(truth), z, np.zeros(z.shape[1]), penalty))


def _reduced(x: Tensor, scaled: Tensor) -> tuple[Floats, Floats]:
    """Centered features in as few coordinates as give the same solution under an L2 penalty."""
    if len(x) < x.shape[1]:
        # The weights are sums of rows: n coordinates say all that d features do.
        values, vectors = torch.linalg.eigh(x @ x.T)
        kept = values > 1e-10 * values[-1].clamp_min(1e-300)
        basis = x.T @ (vectors[:, kept] / values[kept].sqrt())
        x, scaled = x @ basis, scaled @ basis
    return x.cpu().numpy(), scaled.cpu().numpy()


def _newton(sets: RiskSets, z: Floats, weights: Floats, penalty: float) -> Floats:
    def value(at: Floats) -> float:
        return sets.log_likelihood(z @ at) - penalty / 2 * float(at @ at)

    now = value(weights)
    for _ in range(100):
        step, gain = sets.step(z, weights, penalty)
        if gain <= 1e-12 * max(1.0, abs(now)):
            break
        length = 1.0
        while value(weights + length * step) < now and length > 1e-6:
            length /= 2
        weights = weights + length * step
        now = value(weights)
    return weights


def cumulative_link(
    train: ProbeRows,
    test: Tensor,
    *,
    n_levels: int,
    val: ProbeRows | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TargetOutcome:
    """P(level <= k) = logistic(threshold k - score), as probabilities [n, levels] of levels from 0 on."""

    def path(rows: ProbeRows, queries: Tensor) -> Floats:
        z, others = _reduced(*standardized(rows.features, queries, device))
        levels = rows.truth[:, 0].astype(np.int64)
        size = float(len(z) * rows.features.shape[1])
        start: Floats | None = None
        found = []
        for strength in reversed(_COX_STRENGTHS):
            start = _fit_levels(z, levels, n_levels, strength * size, start)
            found.append(_level_probabilities(others, start, n_levels))
        return np.stack(found[::-1])

    choice = (_level_loss, "log_loss", (float(train.features.numel()),), _COX_STRENGTHS)
    return _chosen(train, test, path, *choice, val=val, seed=seed)


def _level_loss(said: Floats, truth: Floats, held_out: NDArray[np.bool_]) -> Floats:
    rows = np.flatnonzero(held_out)
    right = said[:, rows, truth[rows, 0].astype(np.int64)]
    return np.asarray(-np.log(np.maximum(right, 1e-12)).sum(axis=1))


def _thresholds(parameters: Floats, n_levels: int) -> Floats:
    """The first threshold and the logarithms of the gaps between them, as increasing thresholds with ends."""
    inner = np.cumsum(np.append(parameters[0], np.exp(parameters[1 : n_levels - 1])))
    return np.concatenate([[-np.inf], inner, [np.inf]])


def _level_probabilities(z: Floats, parameters: Floats, n_levels: int) -> Floats:
    bounds = _thresholds(parameters, n_levels) - (z @ parameters[n_levels - 1 :])[:, None]
    return np.diff(special.expit(bounds), axis=1)


def _fit_levels(
    z: Floats, levels: NDArray[np.int64], n_levels: int, penalty: float, start: Floats | None
) -> Floats:
    if start is None:
        shares = np.cumsum(np.bincount(levels, minlength=n_levels) + 0.5)[:-1] / (len(levels) + n_levels / 2)
        inner = special.logit(shares)
        start = np.concatenate([inner[:1], np.log(np.diff(inner)), np.zeros(z.shape[1])])

    def objective(parameters: Floats) -> tuple[float, Floats]:
        weights = parameters[n_levels - 1 :]
        bounds, score = _thresholds(parameters, n_levels), z @ weights
        upper, lower = bounds[levels + 1] - score, bounds[levels] - score
        with np.errstate(over="ignore", divide="ignore"):
            # P = logistic(upper) logistic(-lower) (1 - exp(lower - upper)), which loses no digits.
            value = special.log_expit(upper) + special.log_expit(-lower) + np.log1p(-np.exp(lower - upper))
            narrow = 1 / np.expm1(upper - lower)
        above, below = special.expit(-upper) + narrow, special.expit(lower) + narrow
        by_threshold = np.bincount(levels + 1, above, n_levels + 1) - np.bincount(levels, below, n_levels + 1)
        after = np.cumsum(by_threshold[1:-1][::-1])[::-1]  # a gap moves every threshold behind it
        gaps = after[1:] * np.exp(parameters[1 : n_levels - 1])
        gradient = np.concatenate([after[:1], gaps, z.T @ (below - above) - penalty * weights])
        return float(penalty / 2 * weights @ weights - value.sum()), -gradient

    from scipy import optimize  # imported late: it is slow to load

    found = optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-7}
    )
    return np.asarray(found.x, dtype=np.float64)
