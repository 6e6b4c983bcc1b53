"""Probes of numbers and survival times, against scikit-learn and stored numbers of scikit-survival."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from histobench.roi.protocols import target_probes
from histobench.roi.protocols.linear_probe import folds
from histobench.roi.protocols.target_probes import STRENGTHS, ProbeRows, cox, ridge

Floats = np.ndarray


def _numbers(n: int = 90, d: int = 7, *, noise: float = 0.5, seed: int = 0) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, d)) * np.arange(1, d + 1) + 3
    return x.astype(np.float32), (x @ draw.normal(size=(d, 1)) + noise * draw.normal(size=(n, 1)) + 10)


@pytest.mark.parametrize("d", [7, 200])  # fewer features than rows, and more
def test_ridge_is_that_of_scikit_learn(d: int) -> None:
    x, y = _numbers(d=d)
    found = ridge(ProbeRows(torch.from_numpy(x[:60]), y[:60]), torch.from_numpy(x[60:]))
    model = make_pipeline(StandardScaler(), Ridge(found.info["alpha"])).fit(x[:60].astype(float), y[:60])
    np.testing.assert_allclose(found.predicted, model.predict(x[60:].astype(float)).reshape(-1, 1), rtol=1e-6)


@pytest.mark.slow
def test_the_penalty_is_the_one_that_ridge_cv_chooses_on_the_same_folds() -> None:
    x, y = _numbers(noise=30.0)
    # Standardized as a whole first, since RidgeCV does not standardize in every fold.
    x = StandardScaler().fit_transform(x.astype(float))
    parts = folds(np.zeros(len(x), dtype=np.int64))
    alphas = [strength * len(x) * x.shape[1] for strength in STRENGTHS]
    expected = RidgeCV(alphas, cv=parts, scoring="neg_mean_squared_error").fit(x, y)
    found = ridge(ProbeRows(torch.from_numpy(x), y), torch.from_numpy(x))
    # A fold has fewer rows, and its penalty is as much smaller: at most one step of the grid apart.
    assert abs(np.log10(found.info["alpha"] / expected.alpha_)) <= 0.51
    assert found.info["alpha_chosen_on"] == "5-fold cross-validation on the training set, by single rows"


def test_a_validation_set_chooses_the_penalty() -> None:
    x, y = _numbers(noise=20.0)
    train = ProbeRows(torch.from_numpy(x[:40]), y[:40])
    val = ProbeRows(torch.from_numpy(x[40:70]), y[40:70])
    found = ridge(train, torch.from_numpy(x[70:]), val=val)
    errors = {}
    for alpha in map(float, found.info["mean_squared_error_by_alpha"]):
        model = make_pipeline(StandardScaler(), Ridge(alpha)).fit(x[:40].astype(float), y[:40])
        errors[alpha] = float(((model.predict(x[40:70].astype(float)).reshape(-1, 1) - y[40:70]) ** 2).mean())
    assert min(errors, key=lambda alpha: errors[alpha]) == pytest.approx(found.info["alpha"], rel=1e-4)
    best = found.info["mean_squared_error_by_alpha"][f"{found.info['alpha']:.6g}"]
    assert best == pytest.approx(min(errors.values()), rel=1e-4)


def test_a_feature_that_never_changes_is_left_out() -> None:
    x, y = _numbers()
    same = np.concatenate([x, np.full((len(x), 1), 4.0, dtype=np.float32)], axis=1)
    queries = torch.from_numpy(same[60:]).clone()
    queries[:, -1] = 1e6
    with_it = ridge(ProbeRows(torch.from_numpy(same[:60]), y[:60]), queries)
    without = ridge(ProbeRows(torch.from_numpy(x[:60]), y[:60]), torch.from_numpy(x[60:]))
    assert np.abs(with_it.predicted - without.predicted).max() < 1.0


def patients() -> tuple[Floats, Floats]:
    """Sixty patients with ties in their times; the numbers of scikit-survival below are of these."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(60, 5)).round(3)
    lived = draw.exponential(np.exp(-x[:, 0] + 0.5 * x[:, 1]) * 10)
    censored = draw.exponential(12, size=60)
    time = np.minimum(lived, censored).round(1) + 0.1
    return x, np.stack([time, (lived <= censored).astype(float)], axis=1)


#: scikit-survival 0.28.0: CoxPHSurvivalAnalysis(alpha, ties="breslow", n_iter=200, tol=1e-12), rows 0-39.
COEFFICIENTS = {
    1.0: [0.5997665455271771, -0.3476174068568238, 0.15045469358387523, 0.268708465158169,
          0.09388178389053013],
    10.0: [0.27298188790338856, -0.24948690425443482, 0.020551817225121526, 0.14813752627378474,
           -0.02625066665034093],
}  # fmt: skip


@pytest.mark.parametrize("alpha", COEFFICIENTS)
def test_cox_weights_are_those_of_scikit_survival(alpha: float) -> None:
    x, truth = patients()
    sets = target_probes.RiskSets(truth[:40])
    found = target_probes._newton(sets, x[:40], np.zeros(5), alpha)
    np.testing.assert_allclose(found, COEFFICIENTS[alpha], rtol=1e-5)


def test_cox_is_the_same_in_the_coordinates_of_the_patients() -> None:
    """With more features than patients the problem is solved in other coordinates, to the same end."""
    x, truth = patients()
    wide = np.concatenate([x, x @ np.random.default_rng(0).normal(size=(5, 60))], axis=1)
    queries = torch.from_numpy(wide[40:])
    train = ProbeRows(torch.from_numpy(wide[:40]), truth[:40])
    found = target_probes._cox_path(train, queries, device="cpu")
    scaler = StandardScaler().fit(wide[:40])
    sets = target_probes.RiskSets(truth[:40])
    size = truth[:40, 1].sum() * wide.shape[1]
    for strength, said in zip(target_probes._COX_STRENGTHS, found, strict=True):
        weights = target_probes._newton(sets, scaler.transform(wide[:40]), np.zeros(65), strength * size)
        np.testing.assert_allclose(said[:, 0], scaler.transform(wide[40:]) @ weights, rtol=1e-4, atol=1e-6)


def test_cox_finds_who_is_at_risk() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(150, 20))
    lived, censored = draw.exponential(np.exp(-2 * x[:, 0])), draw.exponential(2, size=150)
    truth = np.stack([np.minimum(lived, censored), (lived <= censored).astype(float)], axis=1)
    found = cox(ProbeRows(torch.from_numpy(x[:100]), truth[:100]), torch.from_numpy(x[100:]))
    assert np.corrcoef(found.predicted[:, 0], x[100:, 0])[0, 1] > 0.9
    assert found.info["num_train_events"] == int(truth[:100, 1].sum())


def levels(n: int = 200, seed: int = 4) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3))
    score = x @ [1.0, -0.5, 0.0] + draw.logistic(size=n)
    return x, np.digitize(score, [-1.0, 0.3, 1.5])


@pytest.mark.slow
def test_cumulative_link_is_that_of_statsmodels() -> None:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    x, y = levels()
    model = OrderedModel(y, x, distr="logit").fit(method="bfgs", disp=False, maxiter=500, gtol=1e-8)
    found = target_probes._fit_levels(x, y, 4, 0.0, None)
    np.testing.assert_allclose(found[3:], model.params[:3], rtol=1e-4)
    np.testing.assert_allclose(target_probes._level_probabilities(x, found, 4), model.predict(x), atol=1e-5)


def test_the_gradient_of_the_cumulative_link_is_right_under_a_penalty() -> None:
    """At the minimum no small step leads lower, and the penalty draws the weights together."""
    x, y = levels()
    free, held = (target_probes._fit_levels(x, y, 4, penalty, None) for penalty in (0.0, 50.0))
    assert np.abs(held[3:]).sum() < 0.9 * np.abs(free[3:]).sum()

    def objective(parameters: Floats) -> float:
        p = target_probes._level_probabilities(x, parameters, 4)
        return float(25.0 * parameters[3:] @ parameters[3:] - np.log(p[np.arange(len(y)), y]).sum())

    for place in range(len(held)):
        for step in (-1e-3, 1e-3):
            assert objective(held + step * np.eye(len(held))[place]) > objective(held)
