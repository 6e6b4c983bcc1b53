"""A whole benchmark from a plan: features, evaluations, intervals, comparisons, the summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from histobench.roi.plan.plan_outcome import BenchmarkOutcome, PlanOutcome, TablesShown

if TYPE_CHECKING:
    from histobench.roi.comparison.splits_compared import SplitTable
    from histobench.roi.options import Plan
    from histobench.work.engines import Display, Engine


def run_benchmark(
    plan: Plan,
    *,
    display: Display | None = None,
    engine: Engine | None = None,
    retry_failed: bool = False,
    keep_going: bool = False,
    heading: str = "Summary",
) -> BenchmarkOutcome:
    """Run the plan; then intervals of all runs in its folder, their table, comparisons, and `summary.md`."""
    from histobench.roi.plan.plan_run import run_plan
    from histobench.work.engines import Display

    display = display or Display()
    outcome = run_plan(plan, engine=engine, display=display, retry_failed=retry_failed, keep_going=keep_going)
    if not outcome.finished:
        return BenchmarkOutcome(outcome)
    return collect(outcome, n_bootstrap=plan.n_bootstrap, say=display.say, heading=heading)


def collect(
    outcome: PlanOutcome, *, n_bootstrap: int | None, say: Callable[[str], None], heading: str
) -> BenchmarkOutcome:
    """The last unit: intervals, comparisons, the summary; all of it views of stored results."""
    from histobench.roi.comparison.tidy_rows import TIDY_FILE
    from histobench.roi.units.roi_run import REPORT
    from histobench.work.run_folder import BLOCKED

    folder = outcome.folder
    last = next(unit for unit in folder.units() if unit.kind == REPORT)
    claim = folder.claim(last)
    try:
        done = _report(outcome, n_bootstrap, say, heading)
        if done.summary is None:
            folder.fail(last, "there are no results to report", state=BLOCKED)
        else:
            made = (done.summary, outcome.results / TIDY_FILE)
            folder.finish(last, files=[path for path in made if path.exists()])
    finally:
        if claim is not None:
            claim.release()
    return done


def tables_shown(done: BenchmarkOutcome) -> TablesShown:
    from histobench.roi.plan.summary import Scope, overviews

    return overviews(
        done.comparisons,
        done.over_splits,
        done.robustness,
        wanted=Scope.of(done.outcome.folder),
        results=done.outcome.results,
    )


def _report(
    outcome: PlanOutcome, n_bootstrap: int | None, say: Callable[[str], None], heading: str
) -> BenchmarkOutcome:
    from histobench.roi.comparison.bootstrap_intervals import write_all_intervals
    from histobench.roi.comparison.lab_summaries import summarize_labs
    from histobench.roi.comparison.robustness_tables import summarise
    from histobench.roi.comparison.tidy_rows import write_whole_table
    from histobench.roi.plan.summary import compare_tasks, compare_tasks_over_splits, write_summary
    from histobench.roi.results.reader import load_runs, results_files
    from histobench.roi.units.comparing import tables_of

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
    if any(unit.kind == "splits" for unit in outcome.folder.units()):
        tables, pooled, more = compare_tasks_over_splits(results)
        comparisons, problems = [*comparisons, *pooled], [*problems, *more]
    summarize_labs(results)
    summary = write_summary(results, comparisons, tables, heading=heading, robustness=robustness)
    return BenchmarkOutcome(outcome, tuple(comparisons), tuple(problems), summary, robustness, tuple(tables))
