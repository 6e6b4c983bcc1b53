"""The summary of a results folder: one ranked table per task, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.version import __version__
from histobench.roi.comparison.comparison import CompareSettings, Comparison, TableMaker, compare_runs
from histobench.roi.comparison.comparison_files import grid_markdown, markdown, write_comparison
from histobench.roi.comparison.robustness import RobustnessTable, robustness_grid
from histobench.roi.comparison.selection import by_task
from histobench.roi.comparison.splits_compared import (
    SplitTable,
    compare_splits,
    pooled_runs,
    split_grid,
    write_split_tables,
)
from histobench.roi.data.cross_validation import LEAVE_ONE_GROUP_OUT
from histobench.roi.results.reader import load_runs, split_runs

FILE = "summary.md"
METRIC = "balanced_accuracy"


def compare_tasks(
    results_dir: Path, *, metric: str = METRIC, table_of: TableMaker | None = None
) -> tuple[list[Comparison], list[str]]:
    """The comparison of every task and preset in a results folder, and why some could not be made.

    `table_of` may know the tables of some datasets already.
    """
    comparisons: list[Comparison] = []
    problems: list[str] = []
    for (task, preset, _, seed), runs in by_task(load_runs(results_dir)).items():
        try:
            comparison = compare_runs(runs, CompareSettings(metric), table_of=table_of)
        except HistobenchError as error:
            problems.append(f"{task} ({preset}): {error}")
            continue
        comparisons.append(comparison)
        folder = results_dir / "comparison" / preset
        write_comparison(comparison, folder / f"seed-{seed}" if seed else folder)
    return comparisons, problems


def compare_tasks_over_splits(
    results_dir: Path, *, metric: str = METRIC
) -> tuple[list[SplitTable], list[Comparison], list[str]]:
    """Every task and preset over its splits, those of leave-one-group-out pooled, and what failed."""
    tables: list[SplitTable] = []
    pooled: list[Comparison] = []
    problems: list[str] = []
    for (task, preset, _, seed), runs in by_task(split_runs(results_dir)).items():
        folder = results_dir / "comparison" / preset
        folder = folder / f"seed-{seed}" if seed else folder
        groups = [run for run in runs if run.info["split"]["scheme"] == LEAVE_ONE_GROUP_OUT]
        repeated = [run for run in runs if run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT]
        try:
            if repeated:
                found = compare_splits(repeated, metric=metric)
                write_split_tables(found, folder)
                tables += found
            if groups:
                pooled.append(compare_runs(pooled_runs(groups), CompareSettings(metric)))
                write_comparison(pooled[-1], folder / LEAVE_ONE_GROUP_OUT)
        except HistobenchError as error:
            problems.append(f"{task} ({preset}) over splits: {error}")
    return tables, pooled, problems


def write_summary(
    results_dir: Path,
    comparisons: Sequence[Comparison],
    over_splits: Sequence[SplitTable] = (),
    *,
    heading: str,
    robustness: Sequence[RobustnessTable] = (),
) -> Path:
    """Write `summary.md`: every comparison, one after the other; then those over splits, and robustness."""
    parts = [
        f"# {heading}",
        f"histobench {__version__}. {METRIC.replace('_', ' ').capitalize()} with 95 % confidence intervals; "
        "an encoder marked as different (*) differs from the best one beyond chance, also when all pairs "
        "of its table are looked at.",
        *(
            markdown(comparison).replace("\n## ", "\n### ").replace("# ", "## ", 1)
            for comparison in comparisons
        ),
        *(["## Over splits"] if over_splits else []),
        *(grid_markdown(split_grid(table)).replace("## ", "### ", 1) for table in over_splits),
        *(grid_markdown(robustness_grid(table)) for table in robustness),
    ]
    path = results_dir / FILE
    write_text(path, "\n\n".join(parts))
    return path
