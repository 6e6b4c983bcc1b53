"""Metrics of stored predictions as functions of resampling counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.metrics.catalogue import CLASS_MEANS, LABEL_METRICS, METRICS, OF_TARGETS
from histobench.roi.metrics.formulas import CALIBRATION_BINS, Tally, label_metrics_of

if TYPE_CHECKING:
    from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]
Evaluate = Callable[[NDArray[np.int32]], Mapping[str, Floats]]


def over_all_classes(evaluate: Evaluate, labels: NDArray[np.int64], *, metric: str | None = None) -> Evaluate:
    """As `evaluate`, but a mean over classes is undefined on counts that lack a class of `labels`.

    `metric` says what all its values are, where they are of one metric and called by the run.
    """
    of_class = (labels[:, None] == np.unique(labels)).astype(np.float64)

    def whole(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        lacking = (counts @ of_class == 0).any(axis=1)
        values = evaluate(counts)
        if not lacking.any():
            return values
        return {
            name: np.where(lacking, np.nan, found) if (metric or name) in CLASS_MEANS else found
            for name, found in values.items()
        }

    return whole


def check_metric(metric: str) -> None:
    """Refuse a name that is no metric."""
    known = (*METRICS, *(each.name for each in OF_TARGETS))
    if metric not in known:
        raise HistobenchError(f"unknown metric {metric!r}; {did_you_mean(metric, known)}")


def all_metrics(predictions: Predictions, *, by_class: bool = False) -> Evaluate:
    """Every metric of one run as a function of counts [b, n]; `by_class` adds `recall@0` and the like."""
    columns = predictions.probabilities.shape[1]
    if max(predictions.labels.max(initial=0), predictions.predicted.max(initial=0)) >= columns:
        raise HistobenchError(
            f"a label lies outside the {columns} classes of the probabilities, so that there are no metrics"
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
    check_metric(metric)
    if metric in LABEL_METRICS:
        return _from_confusion(runs, metric)

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        return {name: all_metrics(predictions)(counts)[metric] for name, predictions in runs.items()}

    return evaluate


def label_metrics_of_confusions(
    confusions: Floats, wanted: Collection[str] | None = None
) -> dict[str, Floats]:
    """The label metrics of confusion matrices [b, c, c], [b] each; those `wanted`, and maybe more."""
    return label_metrics_of(_confusion_only(confusions), wanted)


def _from_confusion(runs: Mapping[str, Predictions], metric: str) -> Evaluate:
    tally = _confusions(runs)

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        return {
            name: label_metrics_of_confusions(confusion, [metric])[metric]
            for name, confusion in tally(counts).items()
        }

    return evaluate


def _confusions(runs: Mapping[str, Predictions]) -> Callable[[NDArray[np.int32]], Mapping[str, Floats]]:
    """Confusion matrices [b, c, c] of every run as a function of counts."""
    from scipy import sparse

    sizes = {name: _n_classes(predictions) for name, predictions in runs.items()}
    cells = sparse.vstack(
        [_cells(predictions, sizes[name]) for name, predictions in runs.items()], format="csr"
    )

    def evaluate(counts: NDArray[np.int32]) -> Mapping[str, Floats]:
        tallied = (cells @ np.ascontiguousarray(counts.T, dtype=np.float64)).T
        values, start = {}, 0
        for name, c in sizes.items():
            values[name] = tallied[:, start : start + c * c].reshape(-1, c, c)
            start += c * c
        return values

    return evaluate


def _cells(predictions: Predictions, c: int) -> NDArray[np.float64]:
    from scipy import sparse

    n = len(predictions)
    rows = predictions.labels * c + predictions.predicted
    return sparse.csr_matrix((np.ones(n), (rows, np.arange(n))), shape=(c * c, n))


def _n_classes(predictions: Predictions) -> int:
    seen = max(int(predictions.labels.max(initial=-1)), int(predictions.predicted.max(initial=-1))) + 1
    return max(len(predictions.classes), predictions.probabilities.shape[1], seen)


def _confusion_only(confusion: Floats) -> Tally:
    """A tally that knows only the confusion matrices; what needs more comes out as NaN."""
    size, c = confusion.shape[:2]
    unknown = np.full(size, np.nan)
    return Tally(
        confusion=confusion,
        concordance=np.full((size, c, c), np.nan),
        average_precision=np.full((size, c), np.nan),
        micro_auroc=unknown,
        micro_auprc=unknown,
        log_loss=unknown,
        squared_error=unknown,
        calibration=np.full((size, CALIBRATION_BINS, 3), np.nan),
    )
