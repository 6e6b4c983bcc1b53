"""A whole benchmark from a plan: features, evaluations, intervals, comparisons, the summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from histobench.core.progress import Progress
from histobench.roi.comparison.comparison import Comparison
from histobench.roi.comparison.robustness import RobustnessTable, summarise
from histobench.roi.comparison.run_intervals import BootstrapSettings
from histobench.roi.comparison.split_comparison import SplitTable
from histobench.roi.comparison.stored_intervals import bootstrap_runs
from histobench.roi.comparison.stored_intervals import write_summary as write_intervals
from histobench.roi.plan.run import PlanOutcome, Say, run_plan
from histobench.roi.plan.schema import Plan
from histobench.roi.plan.summary import compare_tasks, compare_tasks_over_splits, write_summary
from histobench.roi.results.reader import load_runs, results_files


@dataclass(frozen=True)
class BenchmarkOutcome:
    """What a plan gave: jobs done and failed, the comparison of every task, and where the summary is."""

    outcome: PlanOutcome
    comparisons: tuple[Comparison, ...] = ()
    not_compared: tuple[str, ...] = ()
    summary: Path | None = None
    robustness: tuple[RobustnessTable, ...] = ()
    over_splits: tuple[SplitTable, ...] = ()


def run_benchmark(
    plan: Plan,
    *,
    progress: Progress,
    say: Say,
    before_extraction: Callable[[], None] = lambda: None,
    after_extraction: Callable[[], None] = lambda: None,
    heading: str = "Summary",
) -> BenchmarkOutcome:
    """Run the plan; then intervals of all runs in its folder, one comparison per task, and `summary.md`.

    `say` is told what is being done; the two hooks let a display make room for the bar of the extraction.
    """
    outcome = run_plan(
        plan,
        progress=progress,
        say=say,
        before_extraction=before_extraction,
        after_extraction=after_extraction,
    )
    if not outcome.has_results:
        return BenchmarkOutcome(outcome)
    robustness = summarise(plan.results)
    if not results_files(plan.results):
        return BenchmarkOutcome(outcome, robustness=robustness)
    say("confidence intervals")
    intervals = list(bootstrap_runs(load_runs(plan.results), BootstrapSettings(plan.n_bootstrap)))
    write_intervals(plan.results, intervals)
    comparisons, problems = compare_tasks(plan.results)
    over_splits: list[SplitTable] = []
    if plan.scheme is not None:
        over_splits, pooled, more = compare_tasks_over_splits(plan.results)
        comparisons, problems = [*comparisons, *pooled], [*problems, *more]
    summary = write_summary(plan.results, comparisons, over_splits, heading=heading, robustness=robustness)
    return BenchmarkOutcome(
        outcome,
        tuple(comparisons),
        tuple(problems),
        summary,
        robustness,
        tuple(over_splits),
    )
