"""`histobench mint run --engine ray|slurm`: hands the parts of a run to workers, says how far they are."""

from __future__ import annotations

import argparse

from histobench.cli.engine_flags import check_engine_flags
from histobench.cli.mint_summary import INCOMPLETE
from histobench.cli.terminal import open_terminal, say

WORKERS = 4


def run_elsewhere(args: argparse.Namespace) -> int:
    """Check, write the parts down, and have them played by an engine."""
    from histobench.cli.mint_progress import progress_display
    from histobench.cli.mint_summary import print_summary
    from histobench.core import ray_cluster, slurm
    from histobench.mint.runs import clusters
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.parted_run import check_parts, count, outcome_of, plan_parts
    from histobench.mint.runs.play import load_cells

    check_engine_flags(args)
    options = RunOptions.of(args)
    jobs = slurm.read_options(args.slurm, "--slurm")
    tasks = slurm.read_task_number(jobs.pop(slurm.TASKS, None))
    workers = args.workers if args.workers is not None else tasks or WORKERS
    check_parts(workers)
    loaded, output = load_cells(options)
    if args.engine == "slurm":
        slurm.check_options(jobs)
    else:
        ray_cluster.connect(args.ray_address)
    run = plan_parts(options, workers, (loaded, output))
    cells = [cell.cell for cell, _ in loaded]
    tally = count(run, loaded)
    before = tally.standing()
    if before.done == before.total:
        print_summary(output, cells, outcome_of(run, tally))
        return 0
    if args.engine == "slurm":
        job = clusters.submit(run, jobs)
        say(
            f"job {job}: {run.parts} tasks play {before.total - before.done} episodes; "
            f"logs in {output}/writers/logs"
        )
        say(f"histobench mint table {output} shows what is finished, also while they play")
        return 0
    console = open_terminal(error=True)
    with progress_display(console, tally) as show:
        problems = clusters.play_on_ray(run, lambda: show(outcome_of(run, count(run, loaded)).standing))
    outcome = outcome_of(run, count(run, loaded), problems)
    print_summary(output, cells, outcome)
    return 0 if outcome.complete else INCOMPLETE
