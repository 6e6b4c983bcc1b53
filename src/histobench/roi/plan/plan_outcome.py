"""What a plan gave: light to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.roi.metrics.metric_catalogue import described
from histobench.work.run_folder import RunFolder

if TYPE_CHECKING:
    from histobench.roi.comparison.comparison import Comparison
    from histobench.roi.comparison.robustness_tables import RobustnessTable
    from histobench.roi.comparison.splits_compared import SplitTable

METRIC = "balanced_accuracy"


@dataclass(frozen=True)
class EncoderFailure:
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
        return self.evaluated + self.unchanged > 0


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
class TablesShown:
    overviews: tuple[Overview, ...]
    answer: str = ""  # which encoders may be the best, by the main task


@dataclass(frozen=True)
class BenchmarkOutcome:
    """What a plan gave: jobs done and failed, the comparison of every task, and where the summary is."""

    outcome: PlanOutcome
    comparisons: tuple[Comparison, ...] = ()
    not_compared: tuple[str, ...] = ()
    summary: Path | None = None
    robustness: tuple[RobustnessTable, ...] = ()
    over_splits: tuple[SplitTable, ...] = ()
