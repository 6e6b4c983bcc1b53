"""Run a whole benchmark: datasets x encoders x tasks, from images to a ranked summary."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import add_engine_choice, chosen_engine
from histobench.cli.terminal import open_terminal, say
from histobench.core.errors import HistobenchError
from histobench.core.records import add_flags, given_flags, options_of
from histobench.core.text import shown
from histobench.roi.options import ENGINE_GROUP, DatasetEntry, plan_options

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.data.roi_dataset import RoiDataset
    from histobench.roi.options import Plan
    from histobench.roi.plan.benchmark import BenchmarkOutcome
    from histobench.roi.plan.run import PlanOutcome
    from histobench.roi.work.engines.local import Engine


def run_flags(parser: argparse.ArgumentParser) -> None:
    """A plan file, or a folder and a list of encoders; the flags are the options of a plan."""
    parser.add_argument("plan", nargs="?", help="plan file (YAML); or use --data and --models")
    data = parser.add_argument_group("without a plan file")
    data.add_argument(
        "--data",
        help="folder of class folders, CSV, TAR shards or name of a public dataset; several by commas",
    )
    data.add_argument("--models", help="encoders, separated by commas")
    add_flags(data, options_of(DatasetEntry))
    both = parser.add_argument_group("settings (override the plan file)")
    both.add_argument("--results", help="folder of the results (default: ./results)")
    add_flags(both, [each for each in plan_options() if each.said.group != ENGINE_GROUP])
    where = parser.add_argument_group(ENGINE_GROUP)
    add_engine_choice(where, "this process (default), a Ray cluster, or Slurm jobs; the results are the same")
    add_flags(where, [each for each in plan_options() if each.said.group == ENGINE_GROUP])
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="continue the last run: what failed in it, and what it has not done",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="run the other encoders when some are unknown or have no weights (default: begin nothing)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and what it would cost; do nothing"
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of plan files, for editors; do nothing"
    )


def run_command(args: argparse.Namespace) -> int:
    """Run a whole benchmark: datasets x encoders x tasks, from images to a ranked
    summary.

    What has been done before is not done again, a job that fails does not stop the
    others, and the same command goes on after an interruption.

    Examples:
      histobench run --data my_folder --split 0.7/0.1/0.2 --models efficientnet-lite0,uni_v1
      histobench run --data labels.csv --features uni_v1=TRIDENT/features_uni_v1
      histobench run bench.yaml --dry-run
    """
    if args.schema:
        from histobench.roi.plan.schema import json_schema

        say(json_schema(), end="")
        return 0
    plan = _plan(args)
    console = open_terminal()
    if args.dry_run:
        return _print_dry_run(plan, console, keep_going=args.keep_going)
    engine = chosen_engine(args, plan)
    return carry_out(
        plan,
        console,
        heading="Summary",
        engine=engine,
        retry_failed=args.retry_failed,
        keep_going=args.keep_going,
    )


def carry_out(
    plan: Plan,
    console: Console,
    *,
    heading: str,
    engine: Engine | None = None,
    retry_failed: bool = False,
    keep_going: bool = False,
) -> int:
    """Run a plan, compute intervals, print ranked tables and failures; the exit code."""
    from rich.text import Text

    from histobench.cli.extract import display
    from histobench.roi.plan.benchmark import run_benchmark
    from histobench.roi.work.engines.local import Display

    with console.status("reading datasets") as status:
        done = run_benchmark(
            plan,
            engine=engine,
            retry_failed=retry_failed,
            keep_going=keep_going,
            display=Display(
                progress=display(),
                say=lambda text: status.update(Text(text)),
                before_extraction=status.stop,
                after_extraction=status.start,
            ),
            heading=heading,
        )
    if not done.outcome.finished:
        console.print(f"jobs are submitted; histobench status {plan.results} shows them", soft_wrap=True)
        return 0
    return print_outcome(done, console)


def print_outcome(done: BenchmarkOutcome, console: Console) -> int:
    """The ranked tables, what failed, and where the summary is; the exit code."""
    from histobench.cli.compare import print_grid
    from histobench.cli.robustness import print_tables
    from histobench.roi.comparison.grids import ranked_grid
    from histobench.roi.comparison.splits_compared import split_grid

    for comparison in done.comparisons:
        for table in comparison.tables:
            print_grid(ranked_grid(comparison, table, digits=3), console)
    for splits in done.over_splits:
        print_grid(split_grid(splits, digits=3), console)
    for problem in done.not_compared:
        console.print(f"not compared: {problem}", soft_wrap=True)
    print_tables(done.robustness, console)
    outcome = done.outcome
    _print_failures(outcome, console)
    if done.summary is not None:
        console.print(f"summary: {done.summary}", soft_wrap=True)
    return 0 if outcome.has_results and not outcome.failures else USER_ERROR


def _plan(args: argparse.Namespace) -> Plan:
    from histobench.roi.plan.schema import plan_from, read_plan_values

    if bool(args.plan) == bool(args.data):
        raise HistobenchError("give a plan file, or --data and --models")
    if args.plan:
        values, base = read_plan_values(args.plan), Path(args.plan).parent
        where = args.plan
    else:
        if not args.models and not args.features:
            raise HistobenchError("--models is missing: which encoders? (histobench models lists them)")
        values = {
            "datasets": [_dataset(args, source) for source in args.data.split(",")],
            "encoders": args.models or "",
        }
        base, where = Path("."), "command line"
    values |= given_flags(args, plan_options())
    if args.results is not None:
        values["results"] = str(Path(args.results).absolute())
    return plan_from(values, where=where, base=base)


def _dataset(args: argparse.Namespace, source: str) -> dict[str, Any]:
    return {"source": source.strip(), **given_flags(args, options_of(DatasetEntry))}


def _print_failures(outcome: PlanOutcome, console: Console) -> None:
    for skip in outcome.skipped:
        console.print(f"skipped: {skip.job}: {skip.reason}", soft_wrap=True)
    for failure in outcome.failures:
        console.print(f"FAILED: {failure.job}: {failure.reason}", soft_wrap=True)
    console.print(
        f"{outcome.evaluated} tasks done, {outcome.unchanged} done before, {len(outcome.failures)} failed"
    )


def _print_dry_run(plan: Plan, console: Console, *, keep_going: bool) -> int:
    from rich.table import Table

    from histobench.core.devices import resolve_device
    from histobench.roi.encoders.own_name import is_computed, label_of
    from histobench.roi.encoders.registry import require_encoders
    from histobench.roi.plan.planner import extraction_jobs
    from histobench.roi.plan.run import check_prompts, load_datasets, unresolved_encoders

    missing = unresolved_encoders(plan, download=False)
    require_encoders(missing, keep_going=keep_going)
    device = resolve_device(plan.settings.device)
    table = Table(
        title=f"plan on {device} (times are for a typical device of this kind)", title_justify="left"
    )
    for column in ("dataset", "encoder", "images", "features", "extraction"):
        table.add_column(column, justify="left" if column in ("dataset", "encoder") else "right")
    datasets = load_datasets(plan)
    check_prompts(plan, datasets)
    jobs = extraction_jobs(plan, datasets, device)
    for job in jobs:
        table.add_row(
            job.dataset.name,
            job.encoder,
            str(job.images),
            "?" if job.megabytes is None else f"{job.megabytes:.1f} MB",
            "?" if job.seconds is None else _duration(job.seconds),
        )
    if jobs:
        console.print(table)
    others = [label_of(name) for name in plan.encoders if not is_computed(name)]
    if others:
        console.print(f"features that are not computed from images: {', '.join(others)}", soft_wrap=True)
    total = sum(job.seconds or 0.0 for job in jobs)
    disk = sum(job.megabytes or 0.0 for job in jobs)
    console.print(f"{len(jobs)} extractions, about {_duration(total)} and {disk:.0f} MB of features")
    _print_units(plan, datasets, total, console)
    console.print(
        f"then {', '.join(plan.tasks)} under {', '.join(plan.presets)} for each; results in {plan.results}",
        soft_wrap=True,
    )
    for name, why in missing.items():
        if why:
            console.print(f"left out: {name}: {why}", soft_wrap=True)
    return USER_ERROR if any(missing.values()) else 0


def _print_units(plan: Plan, datasets: dict[str, RoiDataset], seconds: float, console: Console) -> None:
    """How the work is cut, for whoever asks for nodes."""
    from collections import Counter

    from histobench.roi.features.inference.loop import CPU_SHARD_IMAGES, SHARD_IMAGES
    from histobench.roi.plan.planner import units_of

    kinds = Counter(unit.kind for unit in units_of(plan, datasets, whole=False))
    images = sum(len(part) for dataset in datasets.values() for part in dataset.splits.values())
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    console.print(
        f"units: {told}; with --engine ray or slurm also shards of {SHARD_IMAGES} images "
        f"({CPU_SHARD_IMAGES} on a CPU), {images} images are {-(-images // SHARD_IMAGES)} or more per "
        f"encoder; {seconds / 3600:.1f} GPU hours in all",
        soft_wrap=True,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# How far a run is: units done, running, failed and stale per dataset and encoder, speed and time left.

STATES = ("done", "running", "waiting", "stale", "failed", "blocked")


def status_flags(parser: argparse.ArgumentParser) -> None:
    """A results folder."""
    parser.add_argument("results", help="the results folder of a run")


def status_command(args: argparse.Namespace) -> int:
    """How far a run is: units done, running, failed and stale per dataset and
    encoder, speed and time left.

    It reads files alone, so it works while jobs run, from any machine that sees
    the results folder.

    Examples:
      histobench status results
    """
    from histobench.roi.work.engines.slurm import queued
    from histobench.roi.work.run_folder import RunFolder
    from histobench.roi.work.status import status_of

    status = status_of(Path(args.results))
    console = open_terminal()
    rows: list[tuple[str, ...]] = [("dataset", "encoder", *STATES)]
    rows += [
        (cell.dataset, cell.encoder, *(str(cell.states[state] or "-") for state in STATES))
        for cell in status.cells
    ]
    for line in _columns(rows):
        say(line)
    told = ", ".join(f"{status.states[state]} {state}" for state in STATES if status.states[state])
    console.print(f"{status.folder.name} (--engine {status.engine}): {told}", soft_wrap=True)
    if status.hosts:
        hosts = ", ".join(f"{host} ({count})" for host, count in sorted(status.hosts.items()))
        console.print(f"at work: {hosts}", soft_wrap=True)
    jobs = queued(RunFolder(status.folder)) if status.engine == "slurm" else {}
    if jobs:
        told = ", ".join(f"{count} {name}" for name, count in jobs.items())
        console.print(f"Slurm tasks queued or running: {told}", soft_wrap=True)
    if status.images_per_second is not None:
        console.print(f"{status.images} images computed, {status.images_per_second:.1f} images/s per worker")
    if status.seconds_left is not None:
        console.print(f"about {status.seconds_left / 60:.1f} min left at the pace so far")
    for reason, count in sorted(status.not_staged.items()):
        console.print(f"{count} units read images where they are: {reason}", soft_wrap=True)
    for cell in status.cells:
        for reason in cell.reasons:
            console.print(f"FAILED: {cell.dataset} x {cell.encoder}: {reason}", soft_wrap=True)
    for log in status.logs:
        console.print(f"log: {log}", soft_wrap=True)
    return 0


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, numbers to the right; a plan of 20 x 59 has more rows than a drawn table is for."""
    from rich.cells import cell_len

    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    names = 2
    for row in cells:
        padded = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            padded.append(cell + space if place < names else space + cell)
        yield "  ".join(padded).rstrip()
