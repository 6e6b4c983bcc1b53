"""Metrics of stored predictions as functions of resampling counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.metrics.batched import evaluate_resamples, summing_matrix
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.metric_catalogue import CLASS_MEANS, LABEL_METRICS, known_metric

if TYPE_CHECKING:
    from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]
Evaluate = Callable[[NDArray[np.int32]], Mapping[str, Floats]]


def over_all_classes(evaluate: Evaluate, labels: NDArray[np.int64]) -> Evaluate:
    """Make means over classes undefined on counts that lack a class of `labels`."""
    of_class = (labels[:, None] == np.unique(labels)).astype(np.float64)

    def whole(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        lacking = (counts @ of_class == 0).any(axis=1)
        values = evaluate(counts)
        if not lacking.any():
            return values
        return {
            name: np.where(lacking, np.nan, found) if name in CLASS_MEANS else found
            for name, found in values.items()
        }

    return whole


def all_metrics(predictions: Predictions, *, by_class: bool = False) -> Evaluate:
    """Every metric of one run as a function of counts [b, n]; `by_class` adds `recall@0` and the like."""
    columns = predictions.probabilities.shape[1]
    if max(predictions.labels.max(initial=0), predictions.predicted.max(initial=0)) >= columns:
        raise HistobenchError(
            f"a label is outside the {columns} classes of the probabilities: metrics are undefined"
        )

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        return evaluate_resamples(
            predictions.probabilities,
            predictions.labels,
            counts,
            predicted=predictions.predicted,
            by_class=by_class,
        )

    return evaluate


def one_metric(runs: Mapping[str, Predictions], metric: str) -> Evaluate:
    """One metric of several runs on the same images as a function of counts; name of run -> [b]."""
    metric = known_metric(metric)
    if metric in LABEL_METRICS:
        return _from_confusion(runs, metric)

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        return {name: all_metrics(predictions)(counts)[metric] for name, predictions in runs.items()}

    return evaluate


def _from_confusion(runs: Mapping[str, Predictions], metric: str) -> Evaluate:
    """From the confusion matrices of all runs, which one product gives."""
    from scipy import sparse

    sizes = {name: predictions.n_columns for name, predictions in runs.items()}
    cells = sparse.vstack(
        [
            summing_matrix(run.labels * c + run.predicted, np.arange(len(run)), (c * c, len(run)))
            for run, c in zip(runs.values(), sizes.values(), strict=True)
        ],
        format="csr",
    )

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        tallied = (cells @ np.ascontiguousarray(counts.T, dtype=np.float64)).T
        values, start = {}, 0
        for name, c in sizes.items():
            confusion = tallied[:, start : start + c * c].reshape(-1, c, c)
            values[name] = label_metrics_of(confusion, [metric])[metric]
            start += c * c
        return values

    return evaluate
