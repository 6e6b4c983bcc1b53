"""Probes as Patho-Bench and HEST-Benchmark fit them, with fixed penalties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.target_probes import ProbeRows, RiskSets, TargetOutcome, l2_cox

Floats = NDArray[np.float64]
#: Dimensions and seed of HEST-Benchmark's PCA.
LATENT, HEST_SEED = 256, 1
#: Where the Cox model stops without having converged.
_CYCLES = 100_000


def logistic_probe(
    train: Tensor, labels: Tensor, test: Tensor, *, n_classes: int, cost: float | str, balanced: bool
) -> Outcome:
    """Fit `LogisticRegression(C, max_iter=10000, random_state=0)` on the features as they are.

    `cost` "adaptive" is dimensions x classes / 100. A class without training rows has probability 0.
    """
    from sklearn.linear_model import LogisticRegression

    c = train.shape[1] * n_classes / 100 if isinstance(cost, str) else float(cost)
    weight = "balanced" if balanced else None
    y = labels.numpy()
    present = np.unique(y)
    if len(present) < 2:
        raise HistobenchError("the training samples are of one class; the probe needs two")
    model = LogisticRegression(C=c, max_iter=10_000, random_state=0, class_weight=weight)
    model.fit(train.numpy(), y)
    probabilities = np.zeros((len(test), n_classes))
    probabilities[:, model.classes_] = model.predict_proba(test.numpy())
    missing = n_classes - len(present)
    warnings = [f"{missing} of {n_classes} classes have no training samples in this fold"] if missing else []
    info = {"C": c, "class_weight": weight or "none", "max_iter": 10_000, "warnings": warnings}
    return Outcome(probabilities, probabilities.argmax(axis=1), info)


def elastic_net_cox(train: ProbeRows, test: Tensor, *, alpha: float, l1_ratio: float) -> TargetOutcome:
    """Cox regression on the features as they are; the prediction is the log of the relative risk.

    The result is that of scikit-survival's `CoxnetSurvivalAnalysis(alphas=[alpha], l1_ratio=l1_ratio)`, and
    for an `l1_ratio` of 0 that of `CoxPHSurvivalAnalysis(alpha)`, whose penalty is not per patient.
    """
    x = train.features.numpy().astype(np.float64)
    center = x.mean(axis=0)
    queries = test.numpy().astype(np.float64) - center
    if not l1_ratio:
        return TargetOutcome(l2_cox(x - center, train.truth, queries, alpha)[:, None], {"alpha": alpha})
    weights, cycles = _coordinate_descent(x - center, train.truth, alpha * l1_ratio, alpha * (1 - l1_ratio))
    nonzero = int((weights != 0).sum())
    info = {"alpha": alpha, "l1_ratio": l1_ratio, "num_nonzero": nonzero, "num_cycles": cycles}
    return TargetOutcome((queries @ weights)[:, None], info)


def _coordinate_descent(x: Floats, truth: Floats, l1: float, l2: float) -> tuple[Floats, int]:
    """Weights [d] of the least -log likelihood / n + l1 |w| + l2/2 |w|^2, and the cycles over features.

    Cyclic coordinate descent on quadratic approximations (Simon et al. 2011), with the order and the
    tolerance of scikit-survival: what it leaves undone at the end shows in the third digit of risks.
    """
    sets = RiskSets(truth)
    x = x[sets.order]
    n, d = x.shape
    columns = np.ascontiguousarray(x.T)
    # The tolerance is a share of the deviance of weights of 0.
    limit = 1e-7 * (len(sets.events) * np.log(n) + np.log((sets.events + 1) / n).sum()) / n
    weights, cycles = np.zeros(d), 0
    residual, curvature = sets.quadratic(x @ weights)
    tried = np.abs(columns @ residual) > 2 * l1
    active: dict[int, None] = {}
    while True:
        before = weights.copy()
        squares, scaled = (columns**2) @ curvature, columns * curvature

        def cycle(features: Iterable[int], squares: Floats = squares, scaled: Floats = scaled) -> float:
            """Move the weight of each feature to its best value; the largest change of the objective."""
            nonlocal residual
            most = 0.0
            for j in features:
                slope = columns[j] @ residual + weights[j] * squares[j]
                new = np.sign(slope) * max(abs(slope) - l1, 0.0) / (squares[j] + l2)
                if change := new - weights[j]:
                    weights[j] = new
                    residual -= change * scaled[j]
                    most = max(most, squares[j] * change * change)
                    active[j] = None
            return most

        while cycle(np.flatnonzero(tried).tolist()) >= limit and cycles < _CYCLES:
            while cycle(list(active)) >= limit and cycles < _CYCLES:
                cycles += 1
            cycles += 1
        with np.errstate(over="ignore", invalid="ignore"):
            residual, curvature = sets.quadratic(x @ weights)
        if not np.isfinite(residual).all():
            raise HistobenchError("the Cox model diverges: risks are too large; use a larger `cox_alpha`")
        wrong = ~tried & (np.abs(columns @ residual) > l1)
        settled = (squares * (weights - before) ** 2 < limit).all()
        if (settled and not wrong.any()) or cycles >= _CYCLES:
            return weights, cycles
        if settled:
            tried |= wrong


def pca_ridge(train: ProbeRows, test: Tensor) -> TargetOutcome:
    """Standardize, reduce to 256 dimensions, and fit ridge regressions of all targets without an intercept.

    The penalty is 100 / (256 x targets); predictions lack the mean of the targets, as in HEST-Benchmark.
    """
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n, d = train.features.shape
    if min(n, d) < LATENT:
        raise HistobenchError(
            f"the preset hest needs {LATENT} training rows and {LATENT} dimensions in every fold (PCA); this "
            f"one has {n} rows of {d} dimensions. Add samples, or use the preset uni"
        )
    reduce = make_pipeline(StandardScaler(), PCA(LATENT, random_state=HEST_SEED))
    x = reduce.fit_transform(train.features.numpy()).astype(np.float32)
    queries = reduce.transform(test.numpy()).astype(np.float32)
    alpha = 100 / (LATENT * train.truth.shape[1])
    model = Ridge(alpha=alpha, solver="lsqr", random_state=HEST_SEED, fit_intercept=False, max_iter=1000)
    model.fit(x, train.truth)
    predicted = np.asarray(model.predict(queries), dtype=np.float64).reshape(len(queries), -1)
    return TargetOutcome(predicted, {"alpha": alpha, "pca_dimensions": LATENT})
