"""Intervals and comparisons of targets that are not one class per image, over patients or images.

The numbers come from the values of every metric with each unit (patient, slide or image) left out; more than
a thousand units go in equal blocks. Everything else is that of the other tables: intervals on the metric's
own scale, and paired differences that hold for all encoders at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.metric_intervals import METHOD, scale_of, why_no_interval
from histobench.roi.comparison.sampling_units import (
    FEWEST_GROUPS_OF_CLASS,
    FEWEST_POSITIVES,
    SamplingUnits,
)
from histobench.roi.metrics.catalogue import metric_of
from histobench.roi.metrics.target_metrics import evaluate_target
from histobench.roi.predictions import TargetPredictions
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import LeaveOneOut, jackknife_bounds, leave_one_out
from histobench.statistics.resampling import sampling_design


@dataclass(frozen=True)
class TargetTable:
    """Runs on the same rows: of every metric the values of all runs and those with each unit left out."""

    units: SamplingUnits
    found: Mapping[str, LeaveOneOut]
    reference: TargetPredictions

    @classmethod
    def of(cls, runs: Mapping[str, TargetPredictions], *, dataset: str = "") -> TargetTable:
        """The table of these runs; refused where they were not tested on the same rows."""
        same = _aligned(runs, dataset)
        reference = next(iter(same.values()))
        units = SamplingUnits.of_target(reference)
        design = sampling_design(len(reference), clusters=units.group_of)
        each = [leave_one_out(evaluate_target(run), design) for run in same.values()]
        found = {
            metric: replace(
                each[0],
                names=tuple(same),
                values=np.array([run.values[place] for run in each]),
                left_out=np.stack([run.left_out[:, place] for run in each], axis=1),
            )
            for place, metric in enumerate(each[0].names)
        }
        return cls(units, found, reference)

    def intervals(self, metric: str, *, level: float = 0.95) -> dict[str, Interval]:
        """The interval of every run's metric; one without says why."""
        found = self.found[metric]
        name, _, label = metric.partition("@")
        reason = why_no_interval("r2" if label else name, self.units) or self._rare_label(name, label)
        if reason is not None:
            return dict.fromkeys(found.names, Interval(None, None, level, METHOD, 0, reason))
        size = float(len(self.reference))
        low, high = jackknife_bounds(
            found,
            scale_of(name, 1),
            size,
            effective=self.units.worth(size),
            level=level,
            long_tailed=metric_of(name).scale in ("log", "unexplained"),
            biased=name in _PRECISIONS,
            few_carry=name in (*_PRECISIONS, *_AREAS),
        )
        why, count = f"undefined without one of the {self.units.word}", len(found.left_out)
        return {
            name: Interval.of(a, b, level=level, method=METHOD, n_valid=count, why_none=why)
            for name, a, b in zip(found.names, low, high, strict=True)
        }

    def _rare_label(self, name: str, label: str) -> str | None:
        """Why a label is too rare (or too frequent) for an interval of its areas, as classes are."""
        if name not in (*_PRECISIONS, *_AREAS) or name.startswith("micro"):
            return None
        for place, column in enumerate(self.reference.columns):
            positive = self.reference.truth[:, place] > 0
            if (label and int(label) != place) or positive.all() or not positive.any():
                continue  # without both values it enters no mean
            for with_it, word in ((positive, "with"), (~positive, "without")):
                units = len(np.unique(self.units.unit_of[with_it]))
                if units < FEWEST_GROUPS_OF_CLASS:
                    return (
                        f"too few {self.units.word} {word} {column}: {units} (an interval needs "
                        f"{FEWEST_GROUPS_OF_CLASS})"
                    )
            if name in _PRECISIONS and positive.sum() < FEWEST_POSITIVES:
                return (
                    f"too few images with {column}: {int(positive.sum())} (an interval needs "
                    f"{FEWEST_POSITIVES})"
                )
        return None


#: Areas of labels; average precision is too high on small test sets.
_AREAS = ("auroc", "macro_auroc", "micro_auroc")
_PRECISIONS = ("auprc", "macro_ap", "micro_ap")


def _aligned(runs: Mapping[str, TargetPredictions], dataset: str) -> dict[str, TargetPredictions]:
    """The runs with their rows in the order of the first."""
    first, reference = next(iter(runs.items()))
    where = f" on {dataset}" if dataset else ""
    same = {}
    for name, run in runs.items():
        place = {row: number for number, row in enumerate(run.img_names)}
        listed = run.img_names == reference.img_names
        known = listed or (
            len(place) == len(run) == len(reference) and set(place) == set(reference.img_names)
        )
        if run.columns != reference.columns or not known:
            raise HistobenchError(
                f"cannot compare {first} with {name}{where}: they were tested on other images or another "
                "target; evaluate both on the same test set"
            )
        order: NDArray[np.int64] = np.arange(len(run))
        if not listed:
            order = np.array([place[row] for row in reference.img_names], dtype=np.int64)
        if (run.truth[order] != reference.truth).any():
            raise HistobenchError(
                f"cannot compare {first} with {name}{where}: their true values differ; evaluate both on the "
                "same table"
            )
        weights = None if run.weights is None else run.weights[order]
        same[name] = replace(
            run,
            truth=reference.truth,
            predicted=run.predicted[order],
            img_names=reference.img_names,
            groups=reference.groups,
            weights=weights,
        )
    return same
