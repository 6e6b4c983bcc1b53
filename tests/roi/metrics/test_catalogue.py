"""What is written down about every metric holds, and stands in the documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from histobench.roi.metrics.classification import evaluate
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.metric_catalogue import CATALOGUE, LABEL_METRICS, METRICS, Metric

RESULTS_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "results.md"


def test_label_metrics_are_those_that_a_confusion_matrix_gives() -> None:
    confusion = np.array([[[5.0, 1.0, 2.0], [0.0, 4.0, 1.0], [3.0, 0.0, 6.0]]])
    found = {name for name, values in label_metrics_of(confusion).items() if np.isfinite(values)}
    assert found == LABEL_METRICS


@pytest.mark.parametrize("metric", CATALOGUE, ids=METRICS)
def test_better_is_what_the_catalogue_says(metric: Metric) -> None:
    labels = np.arange(90) % 3
    good, bad = (
        evaluate(np.where(np.eye(3)[said] == 1, 0.8, 0.1), labels, classes=["a", "b", "c"]).values[
            metric.name
        ]
        for said in (labels, np.where(np.arange(90) % 2, labels, (labels + 1) % 3))
    )
    assert good is not None
    assert bad is not None
    assert good < bad if metric.lower_is_better else good > bad


@pytest.mark.parametrize("metric", CATALOGUE, ids=METRICS)
def test_every_metric_stands_in_the_documentation(metric: Metric) -> None:
    better = "lower" if metric.lower_is_better else "higher"
    assert f"| `{metric.name}` | {metric.description} | {better} |\n" in RESULTS_PAGE.read_text("utf-8")
