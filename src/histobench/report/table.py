"""One table of the site: the runs of one task on one dataset, and the images they share."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from histobench.core.errors import HistobenchError
from histobench.report.payload import packed, rounded, write_payload
from histobench.report.run_payload import episode_summary, run_intervals_of, run_payload, target_payload
from histobench.roi.comparison.answer import Evidence, doubt_of, evidence_of_statistics
from histobench.roi.comparison.grids import beaten_parts, elsewhere_words, unchecked_words
from histobench.roi.comparison.table_statistics import (
    MAX_T,
    TESTED,
    MetricStatistics,
    Pairs,
    TableStatistics,
    table_of_target,
    table_statistics,
)
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.metrics.metric_catalogue import described, metrics_of_target
from histobench.roi.presets import target_metrics
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS, PATIENT, TARGETS


@dataclass(frozen=True)
class ImageSet:
    """The test images that runs share, in one order; the site names them once."""

    dataset: str
    names: tuple[str, ...]
    labels: NDArray[np.int64]
    groups: tuple[str, ...] | None
    classes: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        text = "\0".join((self.dataset, *self.classes, "", *self.names, "", *(self.groups or ())))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    def write(self, site: Path) -> None:
        if (site / "data" / "images" / f"{self.key}.js").exists():
            return
        content = {"dataset": self.dataset, "classes": self.classes, "names": self.names}
        groups: dict[str, Any] = {}
        if self.groups is not None and any(self.groups):
            known, place = np.unique(self.groups, return_inverse=True)
            groups = {"groupNames": known.tolist(), "groups": packed(place)}
        write_payload(site, f"images/{self.key}", {**content, "labels": packed(self.labels), **groups})


#: The metrics of classes that leaderboards offer, the default first.
_LEADERBOARD = (
    *("balanced_accuracy", "accuracy", "f1_score", "auroc", "macro_auprc", "mcc"),
    *("log_loss", "brier", "ece"),
)
DEFAULT_METRIC = _LEADERBOARD[0]
_TESTED = {*TESTED, *(metric for target in TARGETS for metric in metrics_of_target(target))}


def metric_facts(runs: Collection[StoredRun]) -> list[dict[str, Any]]:
    """Return what the pages say about every metric of these runs; those of leaderboards come first."""
    kinds = {(run.target, run.identity.preset) for run in runs} or {(CLASS, "")}
    ordered = sorted(kinds, key=lambda kind: ((CLASS, *TARGETS).index(kind[0]), kind[1]))
    offered = dict.fromkeys(name for kind in ordered for name in shown_metrics(*kind))
    return [
        {
            "name": name,
            "label": metric.title,
            "short": metric.label,
            "lower": metric.lower_is_better,
            "tested": name in _TESTED,
            "offered": name in offered,
        }
        for name in dict.fromkeys([*offered, *(name for run in runs for name in run.metrics)])
        for metric in [described(name)]
    ]


def shown_metrics(target: str, preset: str) -> tuple[str, ...]:
    """Return the metrics of a kind of target that tables show, the main one first."""
    return _LEADERBOARD if target == CLASS else target_metrics(target, preset)


@dataclass(frozen=True)
class TableJob:
    """What is to be written: runs by their number on the site and their name in the table."""

    board: int
    dataset: str
    dataset_index: int
    runs: dict[int, tuple[str, StoredRun]]
    site: Path
    results_dir: Path


class TableCell(NamedTuple):
    value: float | None
    low: float | None
    high: float | None
    standing: str
    ranks: tuple[int, int] | None = None  # where it may truly stand, for all encoders at once
    may_be_best: bool = False


class WrongImages(NamedTuple):
    """An image set and which of its images some run gets wrong: these are worth a thumbnail first."""

    images: ImageSet
    wrong: NDArray[np.bool_]


@dataclass
class TableResult:
    """What the site needs to know of a table besides its data files."""

    board: int
    dataset_index: int
    cells: dict[str, dict[int, TableCell]] = field(default_factory=dict)  # metric -> run -> cell
    tests: dict[str, tuple[str, str]] = field(default_factory=dict)  # metric -> (test in words, note)
    winners: dict[str, dict[str, Any]] = field(default_factory=dict)  # metric -> run and corrected value
    image_sets: dict[str, WrongImages] = field(default_factory=dict)
    image_set_of: dict[int, str] = field(default_factory=dict)  # run -> image set
    episodes: dict[int, dict[str, list[float | None]]] = field(default_factory=dict)
    n_images: int = 0  # rows of the predictions
    n_tiles: int = 0  # test images, where the rows are patients
    n_groups: int | None = None
    how: str = ""
    interval_kinds: set[str] = field(default_factory=set)  # methods: "wilson-t", ...
    problem: str = ""
    caveats: tuple[str, ...] = ()  # what the runs' own files say to keep in mind
    failures: dict[int, str] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)  # metric -> what was tested


def build_table(job: TableJob) -> TableResult:
    """Read the runs, compute their statistics, write the data files of their pages."""
    # Matrices of one table are small: threads of the linear algebra would only wait for each other.
    with threadpool_limits(1):
        return _build(job)


def _build(job: TableJob) -> TableResult:
    result = TableResult(job.board, job.dataset_index)
    runs: dict[str, StoredRun] = {}
    for number, (name, run) in job.runs.items():
        try:
            if len(run.predictions if run.target == CLASS else run.target_predictions) == 0:
                raise HistobenchError(f"{run.path}: no predictions")
            runs[name] = run
        except (HistobenchError, OSError) as error:
            result.failures[number] = str(error)
    if not runs:
        statistics = TableStatistics()
    elif any(run.target != CLASS for run in runs.values()):
        statistics = table_of_target(runs)
    else:
        statistics = table_statistics({name: run.predictions for name, run in runs.items()}, runs)
    noted = [text for run in runs.values() for text in run.caveats if text != UNCHECKED]
    unchecked = unchecked_words((name, run.caveats) for name, run in runs.items())
    result.caveats = tuple(dict.fromkeys([*noted, *unchecked, *elsewhere_words(runs)]))
    result.problem = statistics.problem
    result.n_images, result.n_groups = statistics.n_images, statistics.n_groups
    result.how = f"jackknife over {statistics.resampled}" if statistics.resampled else ""
    for number, (name, run) in job.runs.items():
        bounds: Mapping[str, Any] = {}
        if name in runs:
            try:
                bounds = _write_run(job, result, statistics, number, name, run)
            except (HistobenchError, OSError) as error:
                result.failures[number] = str(error)
        _add_cells(result, statistics.metrics if name in runs else {}, number, name, run, bounds)
    number_of = {name: number for number, (name, _) in job.runs.items()}
    for metric in statistics.metrics:
        _add_tests(job.dataset, result, metric, statistics, runs, number_of)
    if len(runs) > 1:
        write_payload(job.site, f"table/{job.board}-{job.dataset_index}", _pairs(number_of, statistics))
    return result


def _write_run(
    job: TableJob, result: TableResult, statistics: TableStatistics, number: int, name: str, run: StoredRun
) -> Mapping[str, Any]:
    """Write the data of a run's page; returns the bounds of its metrics."""
    quick = {
        metric: found.intervals[name]
        for metric, found in statistics.metrics.items()
        if name in found.intervals
    }
    intervals = run_intervals_of(run, quick, how=result.how)
    result.interval_kinds |= intervals.kinds
    if run.target == CLASS:
        shown = run.predictions
        images = ImageSet(job.dataset, shown.img_names, shown.labels, shown.groups, shown.classes)
        images.write(job.site)
        payload = run_payload(run, image_set=images.key, intervals=intervals, results_dir=job.results_dir)
        wrong = shown.predicted != shown.labels
        if images.key in result.image_sets:
            wrong = wrong | result.image_sets[images.key].wrong
        result.image_sets[images.key] = WrongImages(images, wrong)
        result.image_set_of[number] = images.key
        if summary := episode_summary(run):
            result.episodes[number] = summary
    else:  # values, intervals and tests, without single images
        labels = {metric: found[name] for metric, found in statistics.labels.items()}
        payload = target_payload(run, intervals=intervals, labels=labels, results_dir=job.results_dir)
        tiles = run.info.get("num_test_tiles")
        result.n_tiles = max(result.n_tiles, tiles if isinstance(tiles, int) else 0)
    write_payload(job.site, f"run/{number}", payload)
    return intervals.bounds


def _add_tests(
    dataset: str,
    result: TableResult,
    metric: str,
    statistics: TableStatistics,
    runs: Mapping[str, StoredRun],
    number_of: Mapping[str, int],
) -> None:
    found = statistics.metrics[metric]
    metrics = {name: run.metrics for name, run in runs.items()}
    notes = [found.note, *_combinations(metric, found, {name: m.get(metric) for name, m in metrics.items()})]
    result.tests[metric] = (MAX_T if found.test else "", ". ".join(filter(None, notes)))
    of_patients = any(run.task == PATIENT or run.setting == "patients" for run in runs.values())
    result.evidence[metric] = evidence_of_statistics(
        dataset, metric, statistics, metrics, of_patients=of_patients, doubt=doubt_of(result.caveats)
    )
    if found.standings is not None:
        winner = found.standings.winner
        result.winners[metric] = {
            "run": number_of[winner.name],
            "value": rounded(winner.value),
            "low": rounded(winner.interval.low),
            "high": rounded(winner.interval.high),
        }


def _combinations(metric: str, found: MetricStatistics, values: Mapping[str, float | None]) -> list[str]:
    """Whether combinations of encoders beat the better of their parts, by the table's own rule."""
    pairs, (first, second) = found.pairs, found.pairs.places
    shown = {
        (pairs.names[a], pairs.names[b]): (float(difference), bool(holds))
        for a, b, difference, holds in zip(first, second, pairs.difference, pairs.holds, strict=True)
    }

    def difference(name: str, part: str) -> tuple[float, bool] | None:
        turned = shown.get((part, name))
        return shown.get((name, part)) if turned is None else (-turned[0], turned[1])

    return [words for _, words in beaten_parts(values, difference, lower=described(metric).lower_is_better)]


def _add_cells(
    result: TableResult,
    metrics: Mapping[str, MetricStatistics],
    number: int,
    name: str,
    run: StoredRun,
    bounds: Mapping[str, Any],
) -> None:
    for metric in shown_metrics(run.target, run.identity.preset):
        low, high = bounds.get(metric) or (None, None)
        standing = metrics[metric].standing(name) if metric in metrics else "untested"
        together = metrics[metric].standings if metric in metrics else None
        result.cells.setdefault(metric, {})[number] = TableCell(
            rounded(run.metrics.get(metric)),
            low,
            high,
            standing,
            None if together is None else together.ranks.get(name),
            together is not None and name in together.best,
        )


def _pairs(number_of: Mapping[str, int], statistics: TableStatistics) -> dict[str, Any]:
    return {
        "metrics": {
            metric: {
                "test": MAX_T if found.test else "",
                "note": found.note,
                "count": len(found.pairs),
                "pairs": _columns(found.pairs, number_of),
            }
            for metric, found in statistics.metrics.items()
        },
        "numImages": statistics.n_images,
        "numGroups": statistics.n_groups,
        "resampled": statistics.resampled,
        "problem": statistics.problem,
    }


def _columns(pairs: Pairs, number_of: Mapping[str, int]) -> dict[str, Any]:
    numbers = np.array([number_of[name] for name in pairs.names], dtype=np.int64)
    first, second = pairs.places
    return {
        "first": packed(numbers[first]),
        "second": packed(numbers[second]),
        "difference": packed(pairs.difference),
        "low": packed(pairs.low),
        "high": packed(pairs.high),
        "p": packed(pairs.p_value),
        "corrected": packed(pairs.p_adjusted),
        # Decided here: a packed p-value is not exact enough to be compared with the error rate.
        "holds": packed(pairs.holds.astype(np.uint8)),
    }
