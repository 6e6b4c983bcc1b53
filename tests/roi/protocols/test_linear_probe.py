from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from histobench.roi.protocols.linear_probe import linear_probe
from histobench.roi.protocols.softmax_regression import Penalty, Solution, fit_softmax


def data(n: int = 300, d: int = 20, c: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % c
    features = torch.randn(c, d, generator=g)[labels] + torch.randn(n, d, generator=g)
    return features * torch.arange(1, d + 1) ** -1.0 + 2, labels


def objective(theta: np.ndarray, x: np.ndarray, y: np.ndarray, penalty: Penalty) -> float:
    """Mean cross-entropy + penalty, written out."""
    c = y.max() + 1
    weight, bias = theta.reshape(c, -1)[:, :-1], theta.reshape(c, -1)[:, -1]
    logits = x @ weight.T + bias
    log_norm = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    loss = (log_norm - logits[np.arange(len(y)), y]).mean()
    norm = np.linalg.norm(weight)
    return loss + penalty.strength * (norm if penalty.kind == "norm" else norm**2 / 2)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("penalty", [Penalty("norm", 0.01), Penalty("norm", 0.2), Penalty("squared", 1e-3)])
def test_the_solver_reaches_the_minimum_of_a_general_optimiser(penalty: Penalty) -> None:
    x, y = data(120, d=3)
    solution = fit_softmax(x, y, n_classes=4, penalty=penalty, tolerance=1e-10)
    start = np.full(16, 0.01)
    best = minimize(
        objective,
        start,
        (x.double().numpy(), y.numpy(), penalty),
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-13, "maxfun": 10**6},
    )
    found = torch.cat([solution.weight, solution.bias[:, None]], 1).numpy().ravel()
    assert objective(found, x.double().numpy(), y.numpy(), penalty) == pytest.approx(
        solution.objective, rel=1e-9
    )
    assert solution.objective <= best.fun * (1 + 1e-7)
    assert solution.converged


def test_a_strong_penalty_leaves_the_class_frequencies() -> None:
    x, y = data(100)
    y = torch.where(torch.arange(100) < 70, 0, y)
    solution = fit_softmax(x, y, n_classes=4, penalty=Penalty("norm", 100.0))
    assert float(solution.weight.norm()) == 0
    frequency = torch.bincount(y).double() / 100
    torch.testing.assert_close(solution.probabilities(x[:1])[0], frequency)


@pytest.mark.slow
def test_use_sklearn_really_uses_scikit_learn() -> None:
    x, y = data()
    outcome = linear_probe(x[:200], y[:200], x[200:], n_classes=4, use_sklearn=True)
    model = LogisticRegression(C=20 * 4 / 100, max_iter=1000, random_state=0).fit(
        x[:200].numpy(), y[:200].numpy()
    )
    np.testing.assert_array_equal(outcome.probabilities, model.predict_proba(x[200:].numpy()))


@pytest.mark.slow
def test_too_few_iterations_are_reported() -> None:
    x, y = data(4000, 40)
    x = x * torch.logspace(2, -2, 40)
    for use_sklearn in (False, True):
        outcome = linear_probe(x, y, x[:5], n_classes=4, max_iteration=1, use_sklearn=use_sklearn)
        assert "after 1 iterations" in outcome.info["warnings"][0]


@pytest.mark.slow
@pytest.mark.parametrize("use_sklearn", [False, True])
def test_a_class_without_training_images_has_probability_zero(use_sklearn: bool) -> None:
    x, y = data(c=3)
    y = torch.where(y == 1, 3, y)
    outcome = linear_probe(x, y, x[:10], n_classes=4, use_sklearn=use_sklearn)
    assert (outcome.probabilities[:, 1] == 0).all()
    np.testing.assert_allclose(outcome.probabilities.sum(1), 1, rtol=1e-6)  # scikit-learn keeps float32
    alone = linear_probe(x, torch.full_like(y, 2), x[:10], n_classes=4, use_sklearn=use_sklearn)
    assert (alone.predicted == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("use_sklearn", [False, True])
def test_a_class_of_the_map_without_training_images_does_not_change_the_penalty(use_sklearn: bool) -> None:
    x, y = data(c=3)
    three, five = (linear_probe(x, y, x[:20], n_classes=c, use_sklearn=use_sklearn) for c in (3, 5))
    assert five.info["cost"] == three.info["cost"] == x.shape[1] * 3 / 100
    np.testing.assert_array_equal(five.probabilities[:, :3], three.probabilities)


def test_the_published_optimiser_ends_where_ours_does(published_probe: Callable[..., Any]) -> None:
    x, y = data(c=3)
    probabilities, objective = published_probe(x, y, x, 3)
    ours = linear_probe(x, y, x, n_classes=3)
    assert ours.info["objective"] == pytest.approx(objective, rel=1e-4)
    np.testing.assert_allclose(ours.probabilities, probabilities.numpy(), rtol=0, atol=5e-3)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Few threads do all of a part, many share the products alone."""
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(5, (9_000,), generator=g)
    features = torch.randn(9_000, 300, generator=g)
    features[torch.arange(9_000), labels] += 2
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 8):
            torch.set_num_threads(count)
            penalty = Penalty("squared", 1e-2)
            found.append(fit_softmax(features, labels, n_classes=5, penalty=penalty).weight)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("decay", "apart", "strength"),
    [(0.5, 0.3, 1e-2), (1.5, 0.15, 2e-2), (0.0, 3.0, 3e-2)],
    ids=["network", "hardly more than the penalty", "separable"],
)
def test_no_optimiser_gets_below_the_solution_of_a_wide_problem(
    decay: float, apart: float, strength: float
) -> None:
    g = torch.Generator().manual_seed(2)
    n, d, c = 500, 300, 3
    y = torch.arange(n) % c
    x = torch.randn(n, d, generator=g) + apart * torch.randn(c, d, generator=g)[y]
    x *= torch.arange(1, d + 1).float() ** -decay
    solution = fit_softmax(x, y, n_classes=c, penalty=Penalty("norm", strength))

    def value_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = torch.from_numpy(theta).view(c, d + 1).requires_grad_()
        logits = x.double() @ parameters[:, :-1].T + parameters[:, -1]
        value = torch.nn.functional.cross_entropy(logits, y) + strength * parameters[:, :-1].norm()
        (gradient,) = torch.autograd.grad(value, parameters)
        return value.item(), gradient.numpy().ravel()

    found = torch.cat([solution.weight, solution.bias[:, None]], 1)
    assert float(found[:, :-1].norm()) > 0
    best = minimize(value_and_gradient, found.numpy().ravel(), jac=True, method="L-BFGS-B")
    assert value_and_gradient(found.numpy().ravel())[0] <= best.fun * (1 + 1e-6)
    assert solution.evaluations <= 80


def wide(apart: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """More dimensions than an approximate Hessian is taken of from the beginning."""
    g = torch.Generator().manual_seed(2)
    y = torch.arange(500) % 3
    x = torch.randn(500, 300, generator=g) + apart * torch.randn(3, 300, generator=g)[y]
    return x.double() * torch.arange(1, 301).double() ** -0.5, y


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "penalty", [Penalty("norm", 0.05), Penalty("squared", 1e-3)], ids=["norm", "squared"]
)
@pytest.mark.parametrize("times", [1e3, 1e5, 1e6])
def test_one_row_that_is_far_away_costs_no_exactness(times: float, penalty: Penalty) -> None:
    x, y = wide()
    seen = int(torch.randperm(500, generator=torch.Generator().manual_seed(0))[0])
    unseen = int(torch.randperm(500, generator=torch.Generator().manual_seed(0))[-1])
    for row in (seen, unseen):  # among those that the leading directions are taken from, and not
        far = x.clone()
        far[row] *= times
        others = torch.arange(500) != row
        without = fit_softmax(x[others], y[others], n_classes=3, penalty=penalty)
        assert int(without.logits(far[row : row + 1]).argmax()) == int(y[row])  # so that it costs nothing
        known = torch.cat([without.weight, without.bias[:, None]], 1).numpy().ravel()
        solution = fit_softmax(far, y, n_classes=3, penalty=penalty)
        assert solution.converged
        assert solution.objective <= objective(known, far.numpy(), y.numpy(), penalty) * (1 + 1e-6)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("times", [1e-4, 1e4, 1e7])
def test_features_of_any_size_have_the_same_solution_with_a_penalty_of_that_size(times: float) -> None:
    x, y = wide(apart=0.1)
    usual = fit_softmax(x, y, n_classes=3, penalty=Penalty("squared", 1e-3))
    scaled = fit_softmax(x * times, y, n_classes=3, penalty=Penalty("squared", 1e-3 * times**2))
    assert usual.converged
    assert scaled.objective == pytest.approx(usual.objective, rel=1e-6)
    assert float(usual.weight.norm()) == pytest.approx(float(scaled.weight.norm()) * times, rel=1e-2)


@pytest.mark.parametrize("d", [40, 300])
def test_features_in_float32_that_are_far_from_zero_keep_their_digits(
    monkeypatch: pytest.MonkeyPatch, d: int
) -> None:
    x, y = wide(apart=0.1)
    far = (x[:, :d] + 1e4).float()
    exact = fit_softmax(far.double(), y, n_classes=3, penalty=Penalty("norm", 0.02), tolerance=1e-9)
    monkeypatch.setattr("histobench.roi.protocols.softmax_regression._SMALL", 0)
    solution = fit_softmax(far, y, n_classes=3, penalty=Penalty("norm", 0.02))
    assert solution.objective == pytest.approx(exact.objective, rel=1e-6)
    assert float((solution.probabilities(far) - exact.probabilities(far)).abs().max()) < 2e-3
    again = fit_softmax(far, y, n_classes=3, penalty=Penalty("norm", 0.02), start=solution)
    assert again.objective == pytest.approx(exact.objective, rel=1e-6)


def _parts(
    n: int, d: int, count: int, *, decay: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of three classes, and the rows of `count` parts: all but a twentieth, another one each."""
    draw = np.random.default_rng(n + d)
    labels = draw.integers(0, 3, n)
    scales = np.arange(1, d + 1) ** -decay
    x = (draw.normal(size=(n, d)) + draw.normal(size=(3, d))[labels] * 0.4) * scales + 0.5
    kept = np.stack([np.arange(n) % 20 != part for part in range(count)])
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels), torch.from_numpy(kept)


def _fits(
    x: torch.Tensor, y: torch.Tensor, kept: torch.Tensor, penalty: Penalty, start: Solution
) -> list[Solution]:
    return [fit_softmax(x, y, n_classes=3, penalty=penalty, start=start, kept=rows) for rows in kept]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "decay"),
    [(400, 30, 0.0), (400, 300, 1.0), pytest.param(3600, 320, 0.5, marks=pytest.mark.nightly)],
)
def test_many_parts_at_once_are_the_fits_of_scikit_learn(n: int, d: int, decay: float) -> None:
    """Small problems in float64, the last one in float32."""
    x, y, kept = _parts(n, d, 3, decay=decay)
    strength = 0.02
    penalty = Penalty("squared", strength)
    whole = fit_softmax(x, y, n_classes=3, penalty=penalty)
    for rows, found in zip(kept, _fits(x, y, kept, penalty, whole), strict=True):
        # The mean loss + strength / 2 ||W||^2 is scikit-learn's sum of losses with this C.
        judge = LogisticRegression(C=1 / (strength * int(rows.sum())), tol=1e-9, max_iter=10_000)
        judge.fit(x[rows].double().numpy(), y[rows].numpy())
        assert float((found.weight - torch.from_numpy(judge.coef_)).norm() / found.weight.norm()) < 2e-3
        np.testing.assert_array_equal(
            found.logits(x[~rows]).argmax(dim=1).numpy(), judge.predict(x[~rows].numpy())
        )


@pytest.mark.parametrize(
    ("penalty", "shift"), [(Penalty("norm", 50.0), 0.0), (Penalty("squared", 0.02), 1e5)], ids=["W=0", "far"]
)
def test_parts_without_weights_or_far_from_zero_are_fitted_too(penalty: Penalty, shift: float) -> None:
    x, y, kept = _parts(400, 30, 2)
    x = (x.double() + shift).float()
    whole = fit_softmax(x, y, n_classes=3, penalty=penalty)
    found = _fits(x, y, kept, penalty, whole)
    for rows, part in zip(kept, found, strict=True):
        alone = fit_softmax(x[rows], y[rows], n_classes=3, penalty=penalty)
        assert part.objective == pytest.approx(alone.objective, rel=1e-6)
