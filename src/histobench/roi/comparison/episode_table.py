"""Runs that report means over episodes or runs, compared by what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.episode_intervals import (
    NO_FILE,
    NOT_KEPT,
    crossed_columns,
    known_metrics,
    left_out_values,
)
from histobench.roi.comparison.run_intervals import resampled_with
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.jackknife import LeaveOneOut, means_without_each
from histobench.statistics.resampling import sampling_design

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpisodeTable:
    """One metric of several runs, a column each, as the runs report it."""

    found: LeaveOneOut
    resampled: str  # in words
    note: str = ""


def reports_episodes(run: StoredRun) -> bool:
    """Whether the run's metrics are means over episodes or runs."""
    return TaskFiles.beside(run.path).per_episode.exists()


def episode_tables(
    named: Mapping[str, StoredRun], reference: Predictions, units: SamplingUnits, metrics: Sequence[str]
) -> dict[str, EpisodeTable] | None:
    """A table for every metric; None where some run's metrics are not means over episodes.

    Over episodes and test units where every run kept what its episodes predicted, otherwise over episodes.
    """
    if not all(map(reports_episodes, named.values())):
        return None
    design = sampling_design(len(reference), clusters=units.group_of)
    kept = {name: _aligned(run, reference) for name, run in named.items()}
    crossed_over = _known_by_all(kept, metrics)
    left_out = {
        name: left_out_values(episodes, design, crossed_over)
        for name, episodes in kept.items()
        if episodes is not None and crossed_over
    }
    tables: dict[str, EpisodeTable] = {}
    for metric in metrics:
        values = np.array([_number(run.metrics.get(metric)) for run in named.values()])
        if metric in crossed_over:
            columns = [left_out[name][metric] for name in named]
            found = crossed_columns(tuple(named), columns, design, freedom=units.freedom)
            words = resampled_with(next(iter(named.values())), _fewest(kept), design.is_clustered)
            tables[metric] = EpisodeTable(replace(found, values=values), words)
        else:
            table = _over_episodes(named, metric, values)
            if table is not None:
                note = NO_FILE if any(episodes is None for episodes in kept.values()) else NOT_KEPT
                tables[metric] = replace(table, note=note)
    return tables


def _known_by_all(kept: Mapping[str, EpisodePredictions | None], metrics: Sequence[str]) -> tuple[str, ...]:
    known = [set(known_metrics(episodes)) if episodes is not None else set() for episodes in kept.values()]
    return tuple(metric for metric in metrics if all(metric in each for each in known))


def _fewest(kept: Mapping[str, EpisodePredictions | None]) -> int:
    return min(len(episodes) for episodes in kept.values() if episodes is not None)


def _aligned(run: StoredRun, reference: Predictions) -> EpisodePredictions | None:
    """The run's episodes with the images in the order of the reference (`aligned` has checked the names)."""
    names = run.predictions.img_names
    if run.episodes is None or names == reference.img_names:
        return run.episodes
    place = {name: k for k, name in enumerate(names)}
    return run.episodes.taken(np.array([place[name] for name in reference.img_names]))


def _over_episodes(named: Mapping[str, StoredRun], metric: str, values: Floats) -> EpisodeTable | None:
    """From the metrics of each episode in the runs' files, episodes paired; None where they do not fit."""
    columns = [run.per_episode for run in named.values()]
    rows = [column[metric] for column in columns if column is not None and metric in column]
    if len(rows) < len(named) or len({len(row) for row in rows}) > 1:
        return None
    left_out = means_without_each(np.stack(rows, axis=1))
    return EpisodeTable(LeaveOneOut.unstratified(tuple(named), values, left_out), "episodes")


def _number(value: float | None) -> float:
    return np.nan if value is None else value
