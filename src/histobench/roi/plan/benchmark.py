"""A whole benchmark from a plan: features, evaluations, intervals, comparisons, the summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from histobench.roi.comparison.comparison import Comparison
from histobench.roi.comparison.robustness import RobustnessTable, summarise
from histobench.roi.comparison.splits_compared import SplitTable
from histobench.roi.comparison.stored_intervals import write_all_intervals
from histobench.roi.comparison.tidy_rows import TIDY_FILE, write_whole_table
from histobench.roi.data.cross_validation import scheme_of
from histobench.roi.options import Plan
from histobench.roi.plan.run import PlanOutcome, run_plan
from histobench.roi.plan.summary import compare_tasks, compare_tasks_over_splits, write_summary
from histobench.roi.results.reader import load_runs, results_files
from histobench.roi.work.comparing import tables_of
from histobench.roi.work.engines.local import Display, Engine
from histobench.roi.work.loop import claim_unit
from histobench.roi.work.run_folder import BLOCKED, REPORT


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
    display: Display | None = None,
    engine: Engine | None = None,
    retry_failed: bool = False,
    keep_going: bool = False,
    heading: str = "Summary",
) -> BenchmarkOutcome:
    """Run the plan; then intervals of all runs in its folder, their table, comparisons, and `summary.md`.

    `display` is told what is being done; `engine` does it (this process, unless another is given). With
    `keep_going` encoders that cannot be made are left out; else nothing is begun.
    """
    display = display or Display()
    outcome = run_plan(plan, engine=engine, display=display, retry_failed=retry_failed, keep_going=keep_going)
    if not outcome.finished:
        return BenchmarkOutcome(outcome)
    return collect(
        outcome,
        n_bootstrap=plan.n_bootstrap,
        over_splits=scheme_of(plan.splits, plan.folds, plan.repeats) is not None,
        say=display.say,
        heading=heading,
    )


def collect(
    outcome: PlanOutcome,
    *,
    n_bootstrap: int | None,
    over_splits: bool,
    say: Callable[[str], None],
    heading: str,
) -> BenchmarkOutcome:
    """The last unit: intervals, comparisons, the summary; all of it views of stored results."""
    folder = outcome.folder
    last = next((unit for unit in folder.units() if unit.kind == REPORT), None)
    if last is None:  # a run of an earlier version
        return _report(outcome, n_bootstrap, over_splits, say, heading)
    claim = claim_unit(folder, last)
    try:
        done = _report(outcome, n_bootstrap, over_splits, say, heading)
        if done.summary is None:
            folder.fail(last, "there are no results to report", state=BLOCKED)
        else:
            made = (done.summary, outcome.results / TIDY_FILE)
            folder.finish(last, files=[path for path in made if path.exists()])
    finally:
        if claim is not None:
            claim.release()
    return done


def _report(
    outcome: PlanOutcome, n_bootstrap: int | None, over_splits: bool, say: Callable[[str], None], heading: str
) -> BenchmarkOutcome:
    if not outcome.has_results:
        return BenchmarkOutcome(outcome)
    results = outcome.results
    robustness = summarise(results)
    if not results_files(results):
        path = write_summary(results, (), heading=heading, robustness=robustness) if robustness else None
        return BenchmarkOutcome(outcome, summary=path, robustness=robustness)
    say("confidence intervals")
    write_all_intervals(load_runs(results), n_bootstrap, summary_in=results)
    write_whole_table(results)
    comparisons, problems = compare_tasks(results, table_of=tables_of(outcome.folder))
    tables: list[SplitTable] = []
    if over_splits:
        tables, pooled, more = compare_tasks_over_splits(results)
        comparisons, problems = [*comparisons, *pooled], [*problems, *more]
    summary = write_summary(results, comparisons, tables, heading=heading, robustness=robustness)
    return BenchmarkOutcome(
        outcome,
        tuple(comparisons),
        tuple(problems),
        summary,
        robustness,
        tuple(tables),
    )
