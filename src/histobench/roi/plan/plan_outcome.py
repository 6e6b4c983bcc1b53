"""What a plan gave, and the record by which the same plan is seen to be finished: light to import.

A run whose data, code, weights and results are as they were has nothing to do. That is seen from the stamps
of files (size, times, inode) alone: no network is built and no result is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.version import __version__
from histobench.roi.metrics.metric_catalogue import described
from histobench.work.run_folder import RunFolder

if TYPE_CHECKING:
    from histobench.roi.comparison.comparison import Comparison
    from histobench.roi.comparison.robustness_tables import RobustnessTable
    from histobench.roi.comparison.splits_compared import SplitTable
    from histobench.roi.data.roi_dataset import RoiDataset
    from histobench.roi.options import Plan

METRIC = "balanced_accuracy"


@dataclass(frozen=True)
class EncoderFailure:
    """A job that could not be done, and why."""

    job: str
    reason: str


@dataclass
class PlanOutcome:
    """What was done, what was there already, and what failed."""

    results: Path
    folder: RunFolder
    evaluated: int = 0
    unchanged: int = 0
    failures: list[EncoderFailure] = field(default_factory=list)
    skipped: list[EncoderFailure] = field(default_factory=list)
    #: False where jobs go on after this process.
    finished: bool = True
    #: How datasets were split, where the plan asked for shares.
    splits: list[str] = field(default_factory=list)

    @property
    def has_results(self) -> bool:
        """Whether there is anything to compare."""
        return self.evaluated + self.unchanged > 0


# Encoders x tasks: everything that was asked for on one dataset in one table.


@dataclass(frozen=True)
class OverviewCell:
    """A value with its interval; `mark` says whether it may be the best."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class OverviewColumn:
    """One task; `detail` is its setting, preset or site column. Cells are by encoder."""

    task: str
    detail: str
    cells: Mapping[str, OverviewCell]


@dataclass(frozen=True)
class Overview:
    """Encoders x tasks on one dataset, in the order of the first task."""

    dataset: str
    columns: tuple[OverviewColumn, ...]
    encoders: tuple[str, ...]
    n_images: int
    n_groups: int | None
    costs: Mapping[str, str] = field(default_factory=dict)
    no_intervals: str = ""  # why no value has an interval
    notes: tuple[str, ...] = ()  # doubts about single numbers
    remarks: tuple[str, ...] = ()  # about combinations and features from elsewhere
    metrics: tuple[str, ...] = (METRIC,)  # what the values are


def metric_words(metrics: Iterable[str]) -> str:
    """The metrics of tables, at the beginning of a sentence.

    >>> metric_words(["balanced_accuracy", "r2"])
    'Balanced accuracy, R2'
    """
    found = [described(metric) for metric in metrics]
    words = [each.title if each.kind == "target" else each.name.replace("_", " ") for each in found]
    return ", ".join(word[0].upper() + word[1:] for word in words)


@dataclass(frozen=True)
class Shown:
    """The tables of what was asked for, and how many values of the same folder are in none of them."""

    overviews: tuple[Overview, ...]
    hidden: int
    answer: str = ""  # which encoders may be the best, by the main task


@dataclass(frozen=True)
class BenchmarkOutcome:
    """What a plan gave: jobs done and failed, the comparison of every task, and where the summary is.

    Where nothing was left to do there are no comparisons, only what is `shown` of them.
    """

    outcome: PlanOutcome
    comparisons: tuple[Comparison, ...] = ()
    not_compared: tuple[str, ...] = ()
    summary: Path | None = None
    robustness: tuple[RobustnessTable, ...] = ()
    over_splits: tuple[SplitTable, ...] = ()
    shown: Shown | None = None


# Whether a plan is finished.

#: In the results folder: what the last run that left nothing to do was about, and what it showed.
RECORD = "work/finished.zip"
ABOUT = {"version": __version__}
#: A file that was changed so shortly before it was looked at may change again within the clock's resolution.
SETTLED_NS = 2_000_000_000
#: Images beyond which looking at every file is left to the run itself.
MOST_IMAGES = 1_000_000


@dataclass(frozen=True)
class FinishedRun:
    """The outcome of a run as plain values, with the files of its data and digests of all that it saw."""

    data: tuple[str, ...]
    inputs: str
    results: str
    folder: str
    tasks: int
    skipped: tuple[EncoderFailure, ...]
    not_compared: tuple[str, ...]
    summary: str
    shown: Shown


@dataclass(frozen=True)
class PlanInputs:
    """A digest of everything that the results of a plan depend on, and its datasets as they were read."""

    digest: str
    datasets: Mapping[str, RoiDataset]
    #: Every file and folder of the datasets.
    data: tuple[str, ...]
    #: Whether all files were older than the resolution of any clock.
    settled: bool


class _Digest:
    """A digest of plain values and of the stamps of files."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.newest = 0

    def add(self, *values: Any) -> None:
        self._digest.update(json.dumps(values, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))

    def add_file(self, path: str) -> None:
        try:
            stat = os.stat(path)
        except OSError as error:
            self.add(path, error.errno)
            return
        self.add(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        self.newest = max(self.newest, stat.st_mtime_ns, stat.st_ctime_ns)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def inputs_of(plan: Plan, engine: str, heading: str) -> PlanInputs | None:
    """What the results of a plan depend on, as it is now.

    None where that cannot be seen: the code of a user's own encoder may read anything (some of its images are
    computed again in every run). None also where a check or fresh features are asked for, and where something
    is wrong.
    """
    from histobench.roi.data.source import DatasetSource

    began = time.time_ns()
    try:
        if not all(entry.source.exists() for entry in plan.datasets):  # it is on a hub
            return None
        digest = _digest_of(plan, engine, heading)
        if digest is None:
            return None
        datasets = {entry.name: DatasetSource.of(entry, plan).load() for entry in plan.datasets}
        if sum(len(images) for data in datasets.values() for images in data.splits.values()) > MOST_IMAGES:
            return None
        data = _data_files(plan, datasets)
    except (HistobenchError, OSError):  # the run itself says what it is
        return None
    for path in data:
        digest.add_file(path)
    return PlanInputs(digest.hexdigest(), datasets, data, began - digest.newest > SETTLED_NS)


def _digest_of(plan: Plan, engine: str, heading: str) -> _Digest | None:
    """Of the plan, the encoders and the code: of all but the data."""
    from histobench.roi.plan.planner import plan_values

    if plan.settings.no_cache or plan.settings.recheck != "auto":
        return None
    digest = _Digest()
    digest.add(plan_values(plan, engine), heading)
    if not _add_encoders(digest, plan):
        return None
    _add_code(digest)
    return digest


def _add_encoders(digest: _Digest, plan: Plan) -> bool:
    """Files of weights and of features from elsewhere; False where an encoder's code is of somebody else."""
    from histobench.roi.encoders.own_name import elsewhere_path, is_computed, names_features
    from histobench.roi.encoders.registry import listed_specs
    from histobench.roi.encoders.weights import find_weights

    for place in map(elsewhere_path, filter(names_features, plan.encoders)):
        for path in sorted(place.iterdir()) if place.is_dir() else [place]:
            digest.add_file(str(path))
    for spec in listed_specs(filter(is_computed, plan.encoders)):
        if spec is None:
            return False
        if spec.source.kind in ("seed", "project"):  # parts of this package
            continue
        checkpoint = find_weights(spec, plan.weights)
        if checkpoint is None:
            return False
        for path in sorted(checkpoint.parent.iterdir()):  # shards and configurations are beside it
            digest.add_file(str(path))
    return True


def _add_code(digest: _Digest) -> None:
    """This package file by file, the versions of others, and the machine, which chooses the device."""
    from histobench.roi.features.fingerprint import versions

    package = Path(__file__).parents[2]
    for path, stat in _files_below(str(package)):
        if not path.endswith(".pyc"):
            digest.add(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    digest.add(versions("scikit-learn", "scipy", "transformers", "open-clip-torch"))
    digest.add(socket.gethostname(), platform.machine(), os.path.exists("/dev/nvidiactl"))
    digest.add(os.environ.get("CUDA_VISIBLE_DEVICES"))


def _data_files(plan: Plan, datasets: Mapping[str, RoiDataset]) -> tuple[str, ...]:
    """Every file that datasets are read from, and every folder in which another may appear."""
    from histobench.roi.data.image_ref import container_named
    from histobench.roi.encoders.own_name import is_computed

    files: dict[str, None] = {}
    containers: dict[str, bool] = {}
    for entry in plan.datasets:
        given = [entry.source, *(path for path in (entry.class2id, entry.prompts) if path is not None)]
        files.update(dict.fromkeys(map(str, given)))
        if entry.source.is_dir():
            files.update(dict.fromkeys(place for place, _, _ in os.walk(entry.source)))
        if not any(map(is_computed, plan.encoders)):
            continue
        for images in datasets[entry.name].splits.values():
            for image in images:
                path = str(image.path)
                container = container_named(path)
                if container and container not in containers:
                    containers[container] = os.path.isfile(container)
                files[container if container and containers[container] else path] = None
    return tuple(files)


def _files_below(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below a folder but hidden ones, in a fixed order, with its state."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path)
        else:
            yield entry.path, entry.stat(follow_symlinks=False)


def _results_digest(results: Path) -> str:
    """Of all files in a results folder but those of `work`, which say who did what."""
    digest = _Digest()
    for entry in sorted(os.listdir(results)):
        path = results / entry
        if entry == "work" or entry.startswith("."):
            continue
        for file, stat in _files_below(str(path)) if path.is_dir() else [(str(path), path.stat())]:
            digest.add(file[len(str(results)) :], stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return digest.hexdigest()


def finished_before(plan: Plan, engine: str, heading: str) -> BenchmarkOutcome | None:
    """The outcome of a run with the same inputs that left nothing to do; None where there is none.

    None also where any file of the results has come, gone or changed since.
    """
    from histobench.core.record_files import read_record

    results = plan.results
    if not (results / RECORD).is_file():
        return None
    try:
        digest = _digest_of(plan, engine, heading)
        record = read_record(results / RECORD, FinishedRun, about=ABOUT)
        if digest is None or record is None:
            return None
        for path in record.data:
            digest.add_file(path)
        if (digest.hexdigest(), _results_digest(results)) != (record.inputs, record.results):
            return None
    except (HistobenchError, OSError):
        return None
    folder = RunFolder(results / record.folder)
    return BenchmarkOutcome(
        PlanOutcome(results, folder, unchanged=record.tasks, skipped=list(record.skipped)),
        not_compared=record.not_compared,
        summary=results / record.summary if record.summary else None,
        shown=record.shown,
    )


def note_finished(done: BenchmarkOutcome, inputs: PlanInputs) -> None:
    """Note what a run showed, where it left nothing to do, for the next one with the same inputs."""
    from histobench.core.record_files import write_record

    outcome = done.outcome
    if outcome.failures or not outcome.has_results or done.shown is None or not inputs.settled:
        return
    record = FinishedRun(
        inputs.data,
        inputs.digest,
        _results_digest(outcome.results),
        outcome.folder.path.relative_to(outcome.results).as_posix(),
        outcome.evaluated + outcome.unchanged,
        tuple(outcome.skipped),
        done.not_compared,
        "" if done.summary is None else done.summary.relative_to(outcome.results).as_posix(),
        done.shown,
    )
    write_record(outcome.results / RECORD, record, about=ABOUT)
