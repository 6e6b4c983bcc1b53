"""Intervals of few-shot means: over episodes and test units, crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.metric_intervals import NO_CALIBRATION_INTERVAL, metric_intervals
from histobench.roi.comparison.sampling_units import SamplingUnits, scored
from histobench.roi.comparison.unseen_moves import UnseenMoves
from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.metric_catalogue import CALIBRATION_METRICS, LABEL_METRICS, METRICS
from histobench.roi.metrics.target_metrics import defined_mean
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import FEW_SHOT
from histobench.statistics.jackknife import Floats, Ints, LeaveOneOut, crossed, interaction_variance
from histobench.statistics.resampling import jackknife_blocks, sampling_design

#: More units than this are left out in blocks: every episode is tallied once for each.
BLOCKS = 200
_MEMORY = 2**27


def known_metrics(episodes: EpisodePredictions) -> tuple[str, ...]:
    """The metrics that follow from what was kept of the episodes; calibration errors have no intervals."""
    kept = LABEL_METRICS if episodes.log_odds is None else frozenset(METRICS) - CALIBRATION_METRICS
    return tuple(metric for metric in METRICS if metric in kept)


def crossed_columns(
    metric: str, names: tuple[str, ...], each: Sequence[Floats], moves: UnseenMoves
) -> LeaveOneOut:
    """Columns (one of each run) from their `left_out_values` [E, 1 + u] each."""
    means = np.stack([defined_mean(values) for values in each], axis=1)  # [1 + u, m]
    return over_episodes(moves.of(metric, LeaveOneOut(names, means[0], means[1:])), each)


def over_episodes(found: LeaveOneOut, each: Sequence[Floats]) -> LeaveOneOut:
    """Columns of means with the episodes of each run, of which units are left out [E, 1 + u].

    Runs with the same number of episodes are paired: the same seed draws the same training images.
    """
    if all(len(values) == 1 for values in each):
        return found
    if len({len(values) for values in each}) == 1:
        shared = [interaction_variance(values[:, 1:]) for values in each]
        return crossed(found, np.stack([values[:, 0] for values in each], axis=1), interaction=shared)
    return crossed(found, _own_episodes([values[:, 0] for values in each], found.values))


def _own_episodes(each: Sequence[Floats], means: Floats) -> Floats:
    total = sum(map(len, each))
    rows, start = np.repeat(means[None], total, axis=0), 0
    for column, values in enumerate(each):
        own = len(values)
        # So that the variance of the deviations among all rows is that of the run's own mean.
        wider = (total * (total - 1) / (own * max(own - 1, 1))) ** 0.5
        apart = np.where(np.isfinite(values), values - means[column], 0.0)
        rows[start : start + own, column] += wider * apart
        start += own
    return rows


def left_out_values(
    episodes: EpisodePredictions, units: SamplingUnits, metrics: Sequence[str]
) -> dict[str, Floats]:
    """Each episode's metrics on all units and with each (block) left out, name -> [E, 1 + u]."""
    design = sampling_design(len(units.labels), clusters=units.group_of)
    block_of_image = jackknife_blocks(design, BLOCKS)[design.unit_of]
    n_blocks = int(block_of_image.max(initial=-1)) + 1
    labels = [metric for metric in metrics if metric in LABEL_METRICS]
    others = [metric for metric in metrics if metric not in LABEL_METRICS]
    found = _label_metrics_left_out(episodes, block_of_image, n_blocks, labels) if labels else {}
    if others:
        # Every image counts in the first row, and all but one block in the others.
        counts = (block_of_image[None] != np.arange(-1, n_blocks)[:, None]).astype(np.int32)
        found |= _probability_metrics(episodes, counts, others)
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


#: Fewer episodes or runs than this show no spread: their means have no interval and no test.
FEWEST_EPISODES = 3
#: Why a mean over episodes has no interval.
NOT_KEPT = (
    "no interval: the probabilities of each episode were not kept "
    "(`histobench evaluate --keep-probabilities`)"
)
NO_FILE = "no interval: the predictions of each episode were not kept; evaluate again"


def too_few_episodes(count: int, task: str) -> str:
    """Why a mean over so many episodes or runs has no interval; one training run is like any evaluation."""
    if count >= FEWEST_EPISODES or (count == 1 and task != FEW_SHOT):
        return ""
    return f"no interval: {count} episodes or runs (an interval needs {FEWEST_EPISODES})"


def crossed_entries(run: StoredRun, units: SamplingUnits) -> dict[str, dict[str, Any]]:
    """Value, interval and standard error of every metric of a run that reports means over episodes."""
    reported = run.metrics
    tables = episode_tables({"": run}, {"": scored(run.predictions)}, units, list(reported)) or {}
    entries: dict[str, dict[str, Any]] = {}
    for metric, value in reported.items():
        table, calibration = tables.get(metric), metric in CALIBRATION_METRICS
        if calibration or table is None or table.note or value is None:
            reason = NO_CALIBRATION_INTERVAL if calibration else NOT_KEPT if table is None else table.note
            entries[metric] = missing_entry(value, run.undefined_metrics.get(metric) or reason)
            continue
        interval = metric_intervals(metric, table.found, units)[""]
        entries[metric] = {
            "value": value,
            "ci_lower": interval.low,
            "ci_upper": interval.high,
            "std": float(table.found.variance[0] ** 0.5),
            "method": interval.method,
            "n_valid": interval.n_valid,
            "reason": interval.reason,
        }
    return entries


def missing_entry(value: float | None, reason: str) -> dict[str, Any]:
    return {"value": value, "ci_lower": None, "ci_upper": None, "n_valid": 0, "reason": reason}


@dataclass(frozen=True)
class EpisodeTable:
    """One metric of several runs, a column each, as the runs report it."""

    found: LeaveOneOut
    resampled: str  # in words
    note: str = ""


def reports_episodes(run: StoredRun) -> bool:
    return TaskFiles.beside(run.path).per_episode.exists()


def resampled_with(run: StoredRun, n_episodes: int, units: SamplingUnits) -> str:
    """What intervals of means over episodes (of few-shot) or training runs (of the others) are over."""
    if n_episodes == 1:
        return units.resampled
    return f"{'episodes' if run.task == FEW_SHOT else 'training runs'} and {units.resampled}"


def episode_tables(
    named: Mapping[str, StoredRun],
    predictions: Mapping[str, Predictions],
    units: SamplingUnits,
    metrics: Sequence[str],
) -> dict[str, EpisodeTable] | None:
    """A table for every metric; None where some run's metrics are not means over episodes.

    `predictions` are `aligned`. What was not kept of the episodes, or is too little, has a note.
    """
    if not all(map(reports_episodes, named.values())):
        return None
    reference = next(iter(predictions.values()))
    aligned = {name: _aligned(run, reference) for name, run in named.items()}
    kept = {name: episodes for name, episodes in aligned.items() if episodes is not None}
    known = [known_metrics(episodes) for episodes in kept.values()]
    fewest = min((len(episodes) for episodes in kept.values()), default=FEWEST_EPISODES)
    few = too_few_episodes(fewest, next(iter(named.values())).task)
    usable = len(kept) == len(named) and not few
    crossed_over = [metric for metric in metrics if usable and all(metric in each for each in known)]
    left_out = {name: left_out_values(episodes, units, crossed_over) for name, episodes in kept.items()}
    tables: dict[str, EpisodeTable] = {}
    moves = UnseenMoves(list(predictions.values()), units)
    for metric in metrics:
        values = np.array([run.metrics.get(metric) for run in named.values()], dtype=np.float64)
        if metric in crossed_over:
            found = crossed_columns(metric, tuple(named), [left_out[name][metric] for name in named], moves)
            words = resampled_with(next(iter(named.values())), fewest, units)
            # Half-precision probabilities move an area by less than its last printed digit.
            moved = found.left_out + (values - found.values)
            tables[metric] = EpisodeTable(replace(found, values=values, left_out=moved), words)
        else:
            nothing = LeaveOneOut(tuple(named), values, np.full((1, len(named)), np.nan))
            note = NO_FILE if len(kept) < len(named) else few or NOT_KEPT
            tables[metric] = EpisodeTable(nothing, units.resampled, note)
    return tables


def _aligned(run: StoredRun, reference: Predictions) -> EpisodePredictions | None:
    """The run's episodes with the images in the order of the reference (`aligned` has checked the names)."""
    names = run.predictions.img_names
    if run.episodes is None or names == reference.img_names:
        return run.episodes
    place = {name: k for k, name in enumerate(names)}
    return run.episodes.taken(np.array([place[name] for name in reference.img_names]))
