"""Resamples that lost a class: means over classes have no value there, and few others make no interval."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.roi.comparison.metric_function import CLASS_MEANS, all_metrics, over_all_classes
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import bca_interval, percentile_interval


@pytest.fixture
def predictions() -> Predictions:
    rng = np.random.default_rng(0)
    labels = np.array([0, 1] * 20 + [2] * 6)
    scores = rng.dirichlet([1, 1, 1], 46)
    names = tuple(map(str, range(46)))
    return Predictions(scores, labels, scores.argmax(1), ("a", "b", "rare"), names)


def test_means_over_classes_are_undefined_where_a_class_is_lost_and_unchanged_elsewhere(
    predictions: Predictions,
) -> None:
    counts = np.random.default_rng(1).integers(0, 3, (40, 46)).astype(np.int32)
    counts[::2, 40:] = 0  # every other resample has no image of the rare class
    plain = all_metrics(predictions)(counts)
    whole = over_all_classes(all_metrics(predictions), predictions.labels)(counts)
    for name, values in plain.items():
        expected = values.copy()
        if name in CLASS_MEANS:
            assert np.isfinite(values[::2]).all()  # a mean over two classes of three
            expected[::2] = np.nan
        np.testing.assert_array_equal(whole[name], expected, name)


def test_few_defined_resamples_are_no_interval() -> None:
    replicates = np.full(1000, np.nan)
    replicates[:97] = np.random.default_rng(0).normal(0.9, 0.01, 97)
    for interval in (
        percentile_interval(replicates),
        bca_interval(replicates, 0.9, np.random.default_rng(1).normal(0.9, 0.01, 30)),
    ):
        assert (interval.low, interval.high) == (None, None)
        assert interval.reason == "the metric is defined on only 97 of 1000 resamples"
    replicates[:600] = np.random.default_rng(0).normal(0.9, 0.01, 600)
    most = percentile_interval(replicates)
    assert most.low is not None
    assert most.reason == "undefined on 400 of 1000 resamples, which were left out"
