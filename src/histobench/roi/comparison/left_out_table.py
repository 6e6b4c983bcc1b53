"""Metrics of many runs on the same images, with each unit (group or image) left out: one table for all tests.

Label metrics follow from confusion matrices, the AUROC from placement values, others run by run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.episode_intervals import over_episodes, too_few_episodes
from histobench.roi.comparison.metric_intervals import all_metrics, metric_intervals, no_interval
from histobench.roi.comparison.sampling_units import (
    FEWEST_GROUPS_OF_CLASS,
    FEWEST_POSITIVES,
    SamplingUnits,
    aligned,
)
from histobench.roi.comparison.unseen_moves import UnseenMoves, confusion_of, with_target_moves
from histobench.roi.metrics.batched import evaluate_left_out
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.left_out import auroc_left_out
from histobench.roi.metrics.metric_catalogue import LABEL_METRICS
from histobench.roi.metrics.target_metrics import defined_mean, evaluate_target, trainings
from histobench.roi.predictions import Predictions, TargetPredictions
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut, leave_one_out
from histobench.statistics.resampling import Floats, jackknife_of_all, sampling_design

#: The AUROC of the tables, by both of its names.
MACRO_AUROC = ("auroc", "macro_auroc_ovr")
_MEMORY = 2**28
#: Areas of labels; average precision is too high on small test sets.
_AREAS = ("auroc", "macro_auroc", "micro_auroc")
_PRECISIONS = ("auprc", "macro_ap", "micro_ap")


def left_out_table(
    runs: Mapping[str, Predictions], metrics: Sequence[str], units: SamplingUnits
) -> dict[str, LeaveOneOut]:
    """Of each metric the values of every run (columns) and those with each unit left out (rows)."""
    labels_wanted = [metric for metric in metrics if metric in LABEL_METRICS]
    others = [metric for metric in metrics if metric not in LABEL_METRICS and metric not in MACRO_AUROC]
    columns = _label_metrics(list(runs.values()), labels_wanted, units)
    areas = [_auroc(run, units) for run in runs.values()] if set(metrics) & set(MACRO_AUROC) else []
    columns |= {metric: areas for metric in MACRO_AUROC if metric in metrics}
    rest = [_any_metrics(run, others, units) for run in runs.values()] if others else []
    columns |= {metric: [found[metric] for found in rest] for metric in others}
    tables, moves = {}, UnseenMoves(list(runs.values()), units)
    for metric in metrics:
        values, left_out = zip(*columns[metric], strict=True)
        found = LeaveOneOut(tuple(runs), np.array(values), np.stack(left_out, axis=1))
        tables[metric] = moves.of(metric, found)
    return tables


def _label_metrics(
    runs: Sequence[Predictions], metrics: Sequence[str], units: SamplingUnits
) -> dict[str, list[tuple[float, Floats]]]:
    """From the confusion matrices of all runs, as many at a time as fit the memory."""
    columns: dict[str, list[tuple[float, Floats]]] = {metric: [] for metric in metrics}
    c = units.n_columns
    matrices = 1 + (min(c * c, len(units.labels)) if units.group_of is None else units.n_units)
    step = max(1, _MEMORY // (8 * 8 * matrices * c * c))
    for start in range(0, len(runs) if metrics else 0, step):
        parts = [_left_behind(run, units) for run in runs[start : start + step]]
        found = label_metrics_of(np.concatenate([matrices for matrices, _ in parts]), metrics)
        first = 0
        for matrices_of_run, place in parts:
            for metric in metrics:
                values = found[metric][first : first + len(matrices_of_run)]
                columns[metric].append((float(values[0]), values[1:][place]))
            first += len(matrices_of_run)
    return columns


def _left_behind(run: Predictions, units: SamplingUnits) -> tuple[Floats, NDArray[np.int64]]:
    """A run's confusion matrix and those that units leave behind, [1 + b, c, c]; and which is whose [u]."""
    c = units.n_columns
    whole = confusion_of(run, c).reshape(c * c)
    cells = run.labels * c + run.predicted
    if units.group_of is None:
        # All images of one cell of the confusion matrix leave the same matrix behind.
        seen = np.flatnonzero(whole)
        taken = np.zeros((len(seen), c * c))
        taken[np.arange(len(seen)), seen] = 1
        place = np.searchsorted(seen, cells)
    else:
        place = np.arange(units.n_units)
        flat = np.bincount(units.group_of * c * c + cells, minlength=units.n_units * c * c)
        taken = flat.reshape(units.n_units, c * c).astype(np.float64)
    return np.concatenate([whole[None], whole - taken]).reshape(-1, c, c), place


def _auroc(run: Predictions, units: SamplingUnits) -> tuple[float, Floats]:
    p = run.probabilities
    if not np.isfinite(p).all() or p.shape[1] < units.n_columns:
        return _any_metrics(run, ["auroc"], units)["auroc"]
    return auroc_left_out(p, run.labels, units.group_of)


def _any_metrics(
    run: Predictions, metrics: Sequence[str], units: SamplingUnits
) -> dict[str, tuple[float, Floats]]:
    evaluate = all_metrics(run)
    everything = evaluate(np.ones((1, len(run)), dtype=np.int32))
    observed = {metric: float(values[0]) for metric, values in everything.items()}
    if units.group_of is not None:
        design = sampling_design(len(run), clusters=units.group_of)
        left_out: Mapping[str, Floats] = jackknife_of_all(evaluate, design, max_blocks=units.n_units)
        return {metric: (observed[metric], left_out[metric]) for metric in metrics}
    known = ~np.all(np.isnan(run.probabilities), axis=1)
    left_out = evaluate_left_out(run.probabilities[known], run.labels[known], predicted=run.predicted[known])
    found = {}
    for metric in metrics:
        # Without an image that was not scored everything is as it was.
        values = np.full(len(run), observed[metric])
        values[known] = left_out[metric]
        found[metric] = (observed[metric], values)
    return found


@dataclass(frozen=True)
class TargetTable:
    """Runs on the same rows: of every metric the values of all runs and those with each unit left out."""

    units: SamplingUnits
    found: Mapping[str, LeaveOneOut]
    reference: TargetPredictions
    resampled: str  # in words
    note: str = ""  # why there are no intervals

    @classmethod
    def of(cls, runs: Mapping[str, TargetPredictions], *, dataset: str = "") -> TargetTable:
        same = aligned(runs, dataset=dataset)
        reference = next(iter(same.values()))
        units = SamplingUnits.of_target(reference)
        design = sampling_design(len(reference), clusters=units.group_of)
        each = [[leave_one_out(evaluate_target(x), design) for x in trainings(run)] for run in same.values()]
        found = {}
        for place, metric in enumerate(each[0][0].names):
            # Of every run its trainings with nothing and with each unit left out [E, 1 + u].
            columns = [np.array([[x.values[place], *x.left_out[:, place]] for x in run]) for run in each]
            means = np.stack([defined_mean(values) for values in columns], axis=1)
            table = replace(each[0][0], names=tuple(same), values=means[0], left_out=means[1:])
            moved = with_target_moves(metric, table, list(same.values()), units)
            found[metric] = over_episodes(moved, columns)
        fewest = min(map(len, each))
        words = f"training runs and {units.resampled}" if fewest > 1 else units.resampled
        return cls(units, found, reference, words, too_few_episodes(fewest, ""))

    def intervals(self, metric: str, *, level: float = 0.95) -> dict[str, Interval]:
        name, _, label = metric.partition("@")
        reason = self.note or self._rare_label(name, label)
        if reason:
            return dict.fromkeys(self.found[metric].names, no_interval(reason, level))
        return metric_intervals(name, self.found[metric], self.units, level=level)

    def _rare_label(self, name: str, label: str) -> str | None:
        if name not in (*_PRECISIONS, *_AREAS) or name.startswith("micro"):
            return None
        for place, column in enumerate(self.reference.columns):
            positive = self.reference.truth[:, place] > 0
            if (label and int(label) != place) or positive.all() or not positive.any():
                continue  # without both values it enters no mean
            for with_it, word in ((positive, "with"), (~positive, "without")):
                units, needed = len(np.unique(self.units.unit_of[with_it])), FEWEST_GROUPS_OF_CLASS
                if units < needed:
                    return f"too few {self.units.word} {word} {column}: {units} (an interval needs {needed})"
            count, needed = int(positive.sum()), FEWEST_POSITIVES
            if name in _PRECISIONS and count < needed:
                return f"too few images with {column}: {count} (an interval needs {needed})"
        return None
