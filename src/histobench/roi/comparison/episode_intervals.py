"""Intervals of few-shot means: over episodes and test units, crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.metric_intervals import (
    METHOD,
    NO_CALIBRATION_INTERVAL,
    scale_of,
    why_no_interval,
)
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.metric_catalogue import CALIBRATION_METRICS, LABEL_METRICS, METRICS
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import FEW_SHOT
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import (
    LeaveOneOut,
    crossed,
    interaction_variance,
    jackknife_bounds,
    means_without_each,
)
from histobench.statistics.resampling import SamplingDesign, jackknife_blocks, sampling_design

# Means over episodes or runs, with each test unit and each episode left out.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: More units than this are left out in blocks: every episode is tallied once for each.
BLOCKS = 200
_MEMORY = 2**27


def known_metrics(episodes: EpisodePredictions) -> tuple[str, ...]:
    """The metrics that follow from what was kept of the episodes.

    A calibration error grows when images are left out: its mean over resamples is not what was reported.
    """
    kept = LABEL_METRICS if episodes.log_odds is None else frozenset(METRICS) - CALIBRATION_METRICS
    return tuple(metric for metric in METRICS if metric in kept)


def crossed_metrics(
    episodes: EpisodePredictions,
    design: SamplingDesign,
    *,
    freedom: float | None = None,
) -> dict[str, LeaveOneOut]:
    """Of every metric its mean over episodes, with each unit and each episode left out: one column each."""
    found = left_out_values(episodes, design, known_metrics(episodes))
    return {
        metric: crossed_columns((metric,), [values], design, freedom=freedom)
        for metric, values in found.items()
    }


def crossed_columns(
    names: tuple[str, ...],
    each: Sequence[Floats],
    design: SamplingDesign,
    *,
    freedom: float | None = None,
) -> LeaveOneOut:
    """Columns (runs or metrics) from their `left_out_values` [E, 1 + u] each.

    Runs with the same number of episodes are paired: the same seed draws the same training images for every
    encoder. Otherwise the episodes of each run are left out of its own column alone.
    """
    _, stratum_of = jackknife_blocks(design, BLOCKS)
    means = np.stack([_defined_mean(values) for values in each], axis=1)  # [1 + u, m]
    blocks = len(stratum_of) - len(np.unique(stratum_of))
    own = min(design.degrees_of_freedom if freedom is None else freedom, blocks)
    units = LeaveOneOut(names, means[0], means[1:], stratum_of, float(own))
    if len({len(values) for values in each}) == 1:
        shared = [interaction_variance(values[:, 1:], stratum_of) for values in each]
        return crossed(units, np.stack([values[:, 0] for values in each], axis=1), interaction=shared)
    return crossed(units, _own_episodes([values[:, 0] for values in each], means[0]))


def _own_episodes(each: Sequence[Floats], means: Floats) -> Floats:
    """Episodes of runs that do not share them, one run after the other: no part of the others' columns.

    Each run's deviations are scaled so that their variance is that of its own mean among all rows.
    """
    total = sum(map(len, each))
    rows = np.repeat(means[None], total, axis=0)
    start = 0
    for column, values in enumerate(each):
        own = len(values)
        wider = (total * (total - 1) / (own * max(own - 1, 1))) ** 0.5
        deviation = np.where(np.isfinite(values), values - means[column], 0.0)
        rows[start : start + own, column] += wider * deviation
        start += own
    return rows


def left_out_values(
    episodes: EpisodePredictions,
    design: SamplingDesign,
    metrics: Sequence[str],
) -> dict[str, Floats]:
    """Each episode's metrics on all units and with each (block) left out, name -> [E, 1 + u]."""
    blocks, stratum_of = jackknife_blocks(design, BLOCKS)
    block_of_image = blocks[design.unit_of]
    labels = [metric for metric in metrics if metric in LABEL_METRICS]
    others = [metric for metric in metrics if metric not in LABEL_METRICS]
    found = _label_metrics_left_out(episodes, block_of_image, len(stratum_of), labels) if labels else {}
    if others:
        everyone = np.ones((1, design.n_samples), dtype=np.int32)
        without = (block_of_image[None] != np.arange(len(stratum_of))[:, None]).astype(np.int32)
        found |= _probability_metrics(episodes, np.concatenate([everyone, without]), others)
    return {metric: found[metric] for metric in metrics}


def _label_metrics_left_out(
    episodes: EpisodePredictions, block_of_image: Ints, n_blocks: int, metrics: Sequence[str]
) -> dict[str, Floats]:
    way = episodes.classes.shape[1]
    parts: dict[str, list[Floats]] = {metric: [] for metric in metrics}
    step = max(1, _MEMORY // (8 * 8 * (n_blocks + 1) * way * way))
    for start in range(0, len(episodes), step):
        labels, votes = episodes.local(slice(start, start + step))
        size = len(labels)
        place = (np.arange(size)[:, None] * n_blocks + block_of_image) * way * way + labels * way + votes
        each = np.bincount(place[labels >= 0], minlength=size * n_blocks * way * way)
        each = each.reshape(size, n_blocks, way, way)
        total = each.sum(axis=1, keepdims=True)
        tables = np.concatenate([total, total - each], axis=1).astype(np.float64)
        scores = label_metrics_of(tables.reshape(-1, way, way), metrics)
        for metric in metrics:
            parts[metric].append(scores[metric].reshape(size, n_blocks + 1))
    return {metric: np.concatenate(values) for metric, values in parts.items()}


def _probability_metrics(
    episodes: EpisodePredictions, counts: NDArray[np.int32], metrics: Sequence[str]
) -> dict[str, Floats]:
    parts: dict[str, list[Floats]] = {metric: [] for metric in metrics}
    for e in range(len(episodes)):
        labels, votes = (values[0] for values in episodes.local(slice(e, e + 1)))
        took = np.flatnonzero(labels >= 0)
        scores = evaluate_resamples(
            episodes.probabilities(e)[took], labels[took], counts[:, took], predicted=votes[took]
        )
        for metric in metrics:
            parts[metric].append(scores[metric])
    return {metric: np.stack(values) for metric, values in parts.items()}


def _defined_mean(values: Floats) -> Floats:
    """The mean over episodes [E, ...] of those in which the metric is defined; NaN where there is none."""
    defined = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, values, 0.0).sum(axis=0) / defined.sum(axis=0))


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
    why, count = "undefined when a unit or an episode is left out", len(found.left_out)
    size = float(len(units.labels))
    low, high = jackknife_bounds(
        found, scale_of(metric, n_classes or units.n_columns), size, effective=units.worth(size), level=level
    )
    return {
        name: Interval.of(a, b, level=level, method=METHOD, n_valid=count, why_none=why)
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
        moved = found.left_out + (value - found.values[0])
        centred = replace(found, values=np.array([value]), left_out=moved)
        interval = crossed_intervals(centred, metric, units, n_classes=way)[metric]
        entries[metric] = {
            "value": value,
            "ci_lower": interval.low,
            "ci_upper": interval.high,
            "std": float(found.variance[0] ** 0.5),
            "method": interval.method,
            "n_valid": interval.n_valid,
            "reason": interval.reason,
        }
    for metric in sorted(CALIBRATION_METRICS & set(reported)):
        entries[metric] = missing_entry(reported[metric], NO_CALIBRATION_INTERVAL)
    return entries


def missing_entry(value: float | None, reason: str) -> dict[str, Any]:
    """A value without an interval, as files say it."""
    return {"value": value, "ci_lower": None, "ci_upper": None, "n_valid": 0, "reason": reason}


# Runs that report means over episodes or runs, compared by what they report.


@dataclass(frozen=True)
class EpisodeTable:
    """One metric of several runs, a column each, as the runs report it."""

    found: LeaveOneOut
    resampled: str  # in words
    note: str = ""


def reports_episodes(run: StoredRun) -> bool:
    """Whether the run's metrics are means over episodes or runs."""
    return TaskFiles.beside(run.path).per_episode.exists()


def resampled_with(run: StoredRun, n_episodes: int, units: SamplingUnits) -> str:
    """What intervals of means over episodes (of few-shot) or training runs (of the others) are over."""
    episodes = "episodes" if run.task == FEW_SHOT else "training runs"
    return units.resampled if n_episodes < 2 else f"{episodes} and {units.resampled}"


def episode_tables(
    named: Mapping[str, StoredRun], reference: Predictions, units: SamplingUnits, metrics: Sequence[str]
) -> dict[str, EpisodeTable] | None:
    """A table for every metric; None where some run's metrics are not means over episodes.

    Over episodes and test units where every run kept what its episodes predicted, otherwise over episodes.
    """
    if not all(map(reports_episodes, named.values())):
        return None
    design = sampling_design(len(reference), clusters=units.group_of)
    aligned = {name: _aligned(run, reference) for name, run in named.items()}
    kept = {name: episodes for name, episodes in aligned.items() if episodes is not None}
    crossed_over: list[str] = []
    if len(kept) == len(named):
        known = [known_metrics(episodes) for episodes in kept.values()]
        crossed_over = [metric for metric in metrics if all(metric in each for each in known)]
    left_out = {name: left_out_values(episodes, design, crossed_over) for name, episodes in kept.items()}
    tables: dict[str, EpisodeTable] = {}
    for metric in metrics:
        values = np.array([run.metrics.get(metric) for run in named.values()], dtype=np.float64)
        if metric in crossed_over:
            columns = [left_out[name][metric] for name in named]
            found = crossed_columns(tuple(named), columns, design, freedom=units.freedom)
            words = resampled_with(next(iter(named.values())), min(map(len, kept.values())), units)
            tables[metric] = EpisodeTable(replace(found, values=values), words)
        else:
            rows = _per_episode(named, metric)
            if rows is not None:
                found = LeaveOneOut.unstratified(tuple(named), values, means_without_each(rows))
                note = NO_FILE if len(kept) < len(named) else NOT_KEPT
                tables[metric] = EpisodeTable(found, "episodes", note)
    return tables


def _aligned(run: StoredRun, reference: Predictions) -> EpisodePredictions | None:
    """The run's episodes with the images in the order of the reference (`aligned` has checked the names)."""
    names = run.predictions.img_names
    if run.episodes is None or names == reference.img_names:
        return run.episodes
    place = {name: k for k, name in enumerate(names)}
    return run.episodes.taken(np.array([place[name] for name in reference.img_names]))


def _per_episode(named: Mapping[str, StoredRun], metric: str) -> Floats | None:
    """The metric of each episode [E, runs] from the runs' files; None where episodes are not paired."""
    columns = [run.per_episode for run in named.values()]
    rows = [column[metric] for column in columns if column is not None and metric in column]
    if len(rows) < len(named) or len({len(row) for row in rows}) > 1:
        return None
    return np.stack(rows, axis=1)
