"""Intervals of means over episodes or runs, over episodes and test units alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.jackknife import LeaveOneOut
from histobench.core.statistics.logit_t import jackknife_bounds
from histobench.core.statistics.resampling import sampling_design
from histobench.roi.comparison.episode_uncertainty import crossed_metrics
from histobench.roi.comparison.metric_intervals import (
    METHOD,
    NO_CALIBRATION_INTERVAL,
    scale_of,
    why_no_interval,
)
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.catalogue import CALIBRATION_METRICS
from histobench.roi.results.episode_predictions import EpisodePredictions

#: What the interval of a metric is over where the probabilities of the episodes were not kept.
NOT_KEPT = (
    "over episodes alone, for these test images: the probabilities of each episode were not kept; "
    "evaluate with `keep_probabilities`"
)
NO_FILE = (
    "over episodes alone, for these test images: the predictions of each episode were not kept; "
    "evaluate again for intervals over test images, too"
)


def crossed_intervals(
    found: LeaveOneOut,
    metric: str,
    units: SamplingUnits,
    *,
    level: float = 0.95,
    n_classes: int | None = None,
) -> dict[str, Interval]:
    """Of every column of a crossed `LeaveOneOut` its interval: the jackknife on the metric's own scale.

    What the test units do not allow of one evaluation they do not allow of a mean over episodes either.
    """
    reason = why_no_interval(metric, units)
    if reason is not None:
        return dict.fromkeys(found.names, Interval(None, None, level, METHOD, reason=reason))
    undefined = Interval(None, None, level, METHOD, reason="undefined when a unit or an episode is left out")
    size = float(len(units.labels))
    low, high = jackknife_bounds(
        found, scale_of(metric, n_classes or units.n_columns), size, effective=units.worth(size), level=level
    )
    return {
        name: Interval(float(a), float(b), level, METHOD, len(found.left_out))
        if np.isfinite(a + b)
        else undefined
        for name, a, b in zip(found.names, low, high, strict=True)
    }


def crossed_entries(
    episodes: EpisodePredictions,
    units: SamplingUnits,
    reported: Mapping[str, float | None],
) -> dict[str, dict[str, Any]]:
    """Value, interval and standard error of every metric that follows from what was kept of the episodes."""
    entries: dict[str, dict[str, Any]] = {}
    way = episodes.classes.shape[1]
    design = sampling_design(len(units.labels), clusters=units.group_of)
    for metric, found in crossed_metrics(episodes, design, freedom=units.freedom).items():
        value = reported.get(metric)
        if value is None:
            continue
        # Half-precision probabilities move an area by less than its last printed digit; the file's counts.
        centred = LeaveOneOut(
            found.names,
            np.array([value]),
            found.left_out + (value - found.values[0]),
            found.stratum_of,
            found.freedom,
        )
        interval = crossed_intervals(centred, metric, units, n_classes=way)[metric]
        entries[metric] = {
            "value": value,
            "ci_lower": interval.low,
            "ci_upper": interval.high,
            "std": float(found.variance()[0] ** 0.5),
            "method": interval.method,
            "n_valid": interval.n_valid,
            "reason": interval.reason,
        }
    for metric in sorted(CALIBRATION_METRICS & set(reported)):
        entries[metric] = {
            "value": reported[metric],
            "ci_lower": None,
            "ci_upper": None,
            "n_valid": 0,
            "reason": NO_CALIBRATION_INTERVAL,
        }
    return entries
