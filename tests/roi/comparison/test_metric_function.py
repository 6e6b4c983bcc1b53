"""Metrics as functions of counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.metric_function import all_metrics, one_metric
from histobench.roi.metrics.metric_catalogue import LABEL_METRICS, METRICS, known_metric
from histobench.roi.predictions import Predictions

Simulate = Callable[..., Predictions]


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(0).multinomial(150, np.full(150, 1 / 150), size=7).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_one_metric_of_two_runs_is_that_of_each_run_alone(
    metric: str, simulate: Simulate, counts: np.ndarray
) -> None:
    runs = {"a": simulate(signal=1.5, seed=1), "b": simulate(signal=0.5, seed=2)}
    together = one_metric(runs, metric)(counts)
    for name, predictions in runs.items():
        np.testing.assert_allclose(together[name], all_metrics(predictions)(counts)[metric])


def test_counts_stand_for_repeated_images(simulate: Simulate, counts: np.ndarray) -> None:
    predictions = simulate(signal=1.0)
    repeated = np.repeat(np.arange(150), counts[0])
    labels = predictions.labels[repeated]
    assert one_metric({"a": predictions}, "balanced_accuracy")(counts)["a"][0] == pytest.approx(
        balanced_accuracy_score(labels, predictions.predicted[repeated])
    )
    assert one_metric({"a": predictions}, "auroc")(counts)["a"][0] == pytest.approx(
        roc_auc_score(labels, predictions.probabilities[repeated], multi_class="ovr")
    )


def test_label_metrics_are_those_of_the_confusion_matrix() -> None:
    assert {"accuracy", "balanced_accuracy", "f1_score", "mcc", "quadratic_kappa"} <= LABEL_METRICS
    assert not LABEL_METRICS & {"auroc", "macro_auprc", "log_loss", "brier", "ece", "mce"}


def test_an_unknown_metric_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(
        HistobenchError, match="unknown metric 'balanced_acuracy'; did you mean balanced_accuracy"
    ):
        known_metric("balanced_acuracy")
    assert (known_metric("acc"), known_metric("Balanced accuracy")) == ("accuracy", "balanced_accuracy")
