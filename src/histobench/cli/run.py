"""`run` and `status`: a whole benchmark, from images to a ranked summary."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import DATA, SKIP_FAILED, EngineFlags, chosen_engine, engine_of, verbose_option
from histobench.cli.terminal import (
    Busy,
    in_flags,
    open_terminal,
    print_answer,
    print_grid,
    print_overview,
    print_table,
    say,
)
from histobench.core.errors import HistobenchError
from histobench.core.records import add_flags, given_flags, option, options_of, record
from histobench.core.text import count_of, duration
from histobench.roi.options import DatasetEntry, plan_options
from histobench.roi.result_options import ReadsResults
from histobench.roi.task_catalogue import ON_IMAGES

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.options import Plan
    from histobench.roi.plan.plan_outcome import BenchmarkOutcome, Overview, PlanOutcome
    from histobench.roi.plan.planner import ExtractionEstimate
    from histobench.work.run_folder import RunFolder


_FAILURES = "failures and plan files"


@record
class RunFlags(EngineFlags):
    """The flags of `run` besides the options of a plan and of its datasets."""

    plan: str | None = option(
        "plan file (YAML); or give --data and --encoders", default=None, positional=True
    )
    data: str | None = option(f"{DATA}; separate several by commas", default=None)
    encoders: str | None = option(
        "encoders, separated by commas (`histobench models` lists them)",
        default=None,
        old=("--models",),
        metavar="NAME,...",
    )
    results: str | None = option("results folder", default=None, default_text="./results", also=("-o",))
    dry_run: bool = option("print the data, the plan and its cost; compute nothing", default=False)
    verbose: bool = verbose_option("also print one ranked table per task with all notes")
    retry_failed: bool = option(
        "continue the last run: repeat what failed and do what is missing", default=False, group=_FAILURES
    )
    skip_failed: bool = option(SKIP_FAILED, default=False, old=("--keep-going",), group=_FAILURES)
    schema: bool = option("print the JSON schema of plan files, for editors", default=False, group=_FAILURES)


def run_flags(parser: argparse.ArgumentParser) -> None:
    own = {each.name: each for each in options_of(RunFlags)}
    engine = [own.pop(each.name) for each in options_of(EngineFlags)]
    add_flags(parser, [*own.values(), *options_of(DatasetEntry), *plan_options(), *engine])


def run_command(args: argparse.Namespace) -> int:
    """Run a whole benchmark: datasets x encoders x tasks, from images to a ranked
    summary.

    Finished work is kept: repeat the same command to continue after an
    interruption. A job that fails does not stop the others.

    Examples:
      histobench run --data my_folder --split 0.7/0.1/0.2 --encoders efficientnet-lite0,uni_v1
      histobench run --data labels.csv --features uni_v1=TRIDENT/features_uni_v1
      histobench run bench.yaml --dry-run
    """
    if args.schema:
        from histobench.roi.plan.plan_file import json_schema

        say(json_schema(), end="")
        return 0
    plan = _plan(args)
    console = open_terminal()
    if args.dry_run:
        return _print_dry_run(plan, console, keep_going=bool(args.skip_failed), engine=engine_of(args))
    from histobench.cli.extract import display
    from histobench.roi.plan.whole_benchmark import run_benchmark
    from histobench.work.engines import Display

    engine = chosen_engine(args, plan)
    with Busy("reading datasets and checking encoders") as busy:
        shown = Display(
            progress=display(), say=busy.update, before_extraction=busy.stop, after_extraction=busy.start
        )
        done = run_benchmark(
            plan,
            engine=engine,
            retry_failed=bool(args.retry_failed),
            keep_going=bool(args.skip_failed),
            display=shown,
        )
    if not done.outcome.finished:
        console.print(f"Jobs are submitted.\nNext: histobench status {shlex.quote(str(plan.results))}")
        return 0
    return print_outcome(done, console, verbose=bool(args.verbose))


def print_outcome(done: BenchmarkOutcome, console: Console, *, verbose: bool = False) -> int:
    """Print the results of a run on one screen, or everything; the exit code."""
    from histobench.roi.plan.whole_benchmark import tables_shown

    outcome = done.outcome
    if verbose:
        _print_details(done, console)
    shown = tables_shown(done)
    found = shown.overviews
    for line in outcome.splits:
        console.print(line)
    for overview in found:
        print_overview(overview, console)
        for remark in overview.remarks:
            console.print(remark)
    for problem in done.not_compared:
        console.print(f"not compared: {problem}")
    _print_failures(outcome, console)
    if found:
        for line in explanations(found):
            console.print(line)
    if shown.answer:
        print_answer(shown.answer, console)
    if done.summary is not None:
        console.print(f"Details: --verbose, or {_from_here(done.summary)}")
    console.print(f"Next: {_next_step(done, found)}", style="bold")
    return 0 if outcome.has_results and not outcome.failures else USER_ERROR


def _print_details(done: BenchmarkOutcome, console: Console) -> None:
    from histobench.cli.robustness import print_tables
    from histobench.roi.comparison.grids import ranked_grids
    from histobench.roi.comparison.splits_compared import split_grid

    for comparison in done.comparisons:
        for table in comparison.tables:
            for grid in ranked_grids(comparison, table, digits=3):
                print_grid(grid, console)
    for splits in done.over_splits:
        print_grid(split_grid(splits, digits=3), console)
    print_tables(done.robustness, console)


def explanations(found: Sequence[Overview]) -> Iterator[str]:
    """At most three lines that hold for all tables."""
    from histobench.roi.plan.plan_outcome import metric_words

    shown = metric_words(dict.fromkeys(metric for each in found for metric in each.metrics))
    tasks = len({column.task for each in found for column in each.columns})
    compared = any(len(each.encoders) > 1 for each in found)
    tested = any(cell.mark for each in found for column in each.columns for cell in column.cells.values())
    marks = "; * may be the best" if tested else ""
    reasons = list(dict.fromkeys(each.no_intervals for each in found if each.no_intervals))
    if reasons and all(each.no_intervals for each in found):
        yield f"{shown}{marks}. No intervals or tests: {reasons[0]}."
    else:
        yield f"{shown} [95% interval]{marks}."
        yield from (f"No intervals or tests for some datasets: {reason}." for reason in reasons[:1])
    if compared and tested and not reasons:
        looks = " or ".join(
            f"the {count} {what}" for count, what in ((tasks, "tasks"), (len(found), "datasets")) if count > 1
        )
        further = f", not for {looks}" if looks else ""
        yield f"Corrected for all pairs of encoders within a task{further}."
    notes = len({note for each in found for note in each.notes})
    if notes:
        yield f"Not shown: {count_of(notes, 'note')} about individual results (--verbose)."


def _next_step(done: BenchmarkOutcome, found: Sequence[Overview]) -> str:
    outcome = done.outcome
    if outcome.failures:
        again = "" if outcome.has_results else "; nothing was measured"
        return f"fix the failures above and repeat the command (finished work is kept){again}"
    if not found and done.not_compared:
        return "repeat the command with another --results folder"
    if not found:
        return "choose a task that these encoders can do (histobench run --help)"
    if all(len(each.encoders) < 2 for each in found):
        return "add encoders to compare (`histobench models` lists them)"
    results = shlex.quote(str(_from_here(outcome.results)))
    return f"histobench report {results}   (web pages: errors, maps, methods)"


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


#: Encoders that a line about skipped tasks names.
_NAMED = 3


def _plan(args: argparse.Namespace) -> Plan:
    from histobench.roi.plan.plan_file import plan_from, read_plan_values

    if args.plan and args.data:
        raise HistobenchError(
            f"unexpected argument {args.plan!r}: lists take commas (--encoders A,B), shares take slashes "
            "(--split 0.7/0.3), and a path with spaces needs quotes"
        )
    if not args.plan and not args.data:
        raise HistobenchError(
            "give --data FOLDER --encoders NAME,... or a plan file; histobench run --help has examples"
        )
    if args.plan and Path(args.plan).is_dir():
        meant = f"--data {shlex.quote(args.plan)}"
        raise HistobenchError(f"{args.plan} is a folder, not a plan file; did you mean {meant}?")
    if args.plan:
        values, base = read_plan_values(args.plan), Path(args.plan).parent
        where = args.plan
    else:
        if not args.encoders and not args.features:
            raise HistobenchError("--encoders is missing: name encoders (`histobench models` lists them)")
        options = given_flags(args, options_of(DatasetEntry))
        values = {
            "datasets": [{"source": source.strip(), **options} for source in args.data.split(",")],
            "encoders": args.encoders or "",
        }
        base, where = Path("."), ""
    values |= given_flags(args, plan_options())
    if args.results is not None:
        if not args.results.strip():
            raise HistobenchError("--results is empty; give a folder")
        values["results"] = str(Path(args.results).absolute())
    return plan_from(values, where=where, base=base)


def _print_failures(outcome: PlanOutcome, console: Console) -> None:
    skipped: dict[tuple[str, str], list[str]] = {}
    for skip in outcome.skipped:
        job, _, task = skip.job.rpartition(": ")
        encoder = [*job.split(" x "), job][1]
        skipped.setdefault((task, skip.reason.removeprefix(encoder).strip()), []).append(encoder)
    tasks: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (task, reason), encoders in skipped.items():
        tasks.setdefault((reason, tuple(dict.fromkeys(encoders))), []).append(task)
    for (reason, names), alike in tasks.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        console.print(in_flags(f"skipped: {', '.join(alike)} of {', '.join(names[:_NAMED])}{more}: {reason}"))
    for failure in outcome.failures:
        console.print(in_flags(f"FAILED: {failure.job}: {failure.reason}"), style="red")
    console.print(
        f"{count_of(outcome.evaluated, 'task')} done, {outcome.unchanged} done before, "
        f"{len(outcome.failures)} failed"
    )


def _print_dry_run(plan: Plan, console: Console, *, keep_going: bool, engine: str) -> int:
    from histobench.cli.data import print_split_counts
    from histobench.core.devices import resolve_device
    from histobench.roi.encoders.registry import require_encoders
    from histobench.roi.plan.plan_run import check_patients, check_prompts, load_datasets, unresolved_encoders
    from histobench.roi.plan.planner import estimated_seconds, extraction_estimates, tasks_for, with_measured

    with Busy("reading datasets and checking encoders"):
        missing = unresolved_encoders(plan, download=False)
        require_encoders(missing, keep_going=keep_going)
        device = resolve_device(plan.settings.device)
        datasets = load_datasets(plan)
        check_prompts(plan, datasets)
        check_patients(plan, datasets)
        jobs = with_measured(plan, extraction_estimates(plan, datasets, device), device)
    for dataset in datasets.values():
        console.print(dataset.name, style="bold")
        print_split_counts(dataset)
        console.print()
    tasks = dict.fromkeys(task for dataset in datasets.values() for task in tasks_for(plan, dataset))
    parts = estimated_seconds(plan, datasets, jobs)
    if not set(tasks) <= set(ON_IMAGES):
        _print_extractions(plan, jobs, device, console)
    for task in filter(tasks.__contains__, ON_IMAGES):
        known = any(job.seconds for job in jobs)
        cost = f"about {duration(parts[task])} on a typical {device}" if known else "its cost is not known"
        console.print(f"{task}: {cost}; no features are stored")
    unknown = len({job.encoder for job in jobs if job.seconds is None})
    console.print(
        f"total: about {duration(sum(parts.values()))} from empty caches ("
        + ", ".join(f"{part} {duration(seconds)}" for part, seconds in parts.items() if seconds)
        + ")"
        + (f", and {count_of(unknown, 'encoder')} of unknown cost" if unknown else "")
    )
    if engine != "local":
        on_device = sum(seconds for part, seconds in parts.items() if part in ("features", *ON_IMAGES))
        console.print(f"{on_device / 3600:.1f} GPU hours in total")
    console.print(
        f"tasks: {', '.join(tasks)} with preset {', '.join(plan.presets)}; results in {plan.results}"
    )
    for name, why in missing.items():
        if why:
            console.print(f"left out: {name}: {why}")
    console.print("Next: repeat the command without --dry-run", style="bold")
    return USER_ERROR if any(missing.values()) else 0


def _print_extractions(plan: Plan, jobs: Sequence[ExtractionEstimate], device: str, console: Console) -> None:
    from histobench.roi.encoders.own_name import is_computed, label_of

    print_table(
        [
            {
                "dataset": job.dataset.name,
                "encoder": job.encoder,
                "images": f"{job.images:,}",
                "features": "?" if job.megabytes is None else f"{job.megabytes:.1f} MB",
                "extraction": "?" if job.seconds is None else duration(job.seconds),
            }
            for job in jobs
        ]
    )
    others = [label_of(name) for name in plan.encoders if not is_computed(name)]
    if others:
        console.print(f"features that are not computed from images: {', '.join(others)}")
    total = sum(job.seconds or 0.0 for job in jobs)
    console.print(
        f"{count_of(len(jobs), 'extraction')}: about {duration(total)} on a typical {device} and "
        f"{sum(job.megabytes or 0.0 for job in jobs):.0f} MB of features"
    )


STATES = ("done", "running", "waiting", "stale", "failed", "blocked")


def status_command(args: ReadsResults) -> int:
    """Show the progress of a run: units done, running, failed and stale per dataset
    and encoder, speed and time left.

    The command only reads files. It works while jobs run, on any machine that sees
    the results folder.

    Examples:
      histobench status
      histobench status other-results
    """
    from histobench.mint.runs.parted_run import PartedRun
    from histobench.roi.units.roi_run import RoiRun
    from histobench.roi.units.status import status_of
    from histobench.work.engines import queued

    results = Path(args.results)
    folder: RunFolder | None = RoiRun.latest(results) or PartedRun.latest(results)
    status = status_of(results, folder)
    console = open_terminal()
    used = [state for state in STATES if status.states[state]]
    print_table(
        [
            {
                "dataset": cell.dataset,
                "encoder": cell.encoder,
                **{state: str(cell.states[state] or "-") for state in used},
            }
            for cell in status.cells
        ]
    )
    counts_text = ", ".join(f"{status.states[state]} {state}" for state in STATES if status.states[state])
    console.print(f"run {status.folder.name} (--engine {status.engine}): {counts_text}")
    if status.hosts:
        hosts = ", ".join(f"{host} ({count})" for host, count in sorted(status.hosts.items()))
        console.print(f"working: {hosts}")
    jobs = queued(folder) if folder else {}
    if jobs:
        counts_text = ", ".join(f"{count} {name}" for name, count in jobs.items())
        console.print(f"Slurm tasks queued or running: {counts_text}")
    if status.images_per_second is not None:
        console.print(f"{status.images} images computed, {status.images_per_second:.1f} images/s per worker")
    if status.seconds_left is not None:
        console.print(f"about {status.seconds_left / 60:.1f} min left at the pace so far")
    for text in status.hung:
        console.print(text)
    for cell in status.cells:
        for reason in cell.reasons:
            console.print(f"FAILED: {cell.dataset} x {cell.encoder}: {reason}")
    for log in status.logs:
        console.print(f"log: {log}")
    return 0
