"""`--engine ray|slurm` of runs of agents: hands the parts of a run to workers, says how far they are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from histobench.cli.engine_flags import check_engine_flags
from histobench.cli.mint_summary import INCOMPLETE
from histobench.cli.terminal import open_terminal, say

if TYPE_CHECKING:
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.parted_run import PlayPart
    from histobench.mint.runs.play import Loaded

WORKERS = 4


def run_elsewhere(args: argparse.Namespace) -> int:
    """Have the parts of a run of `histobench mint run` played by an engine."""
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.parted_run import play_part
    from histobench.mint.runs.play import load_cells

    options = RunOptions.of(args)
    return share_out(args, options, lambda: load_cells(options), play_part, track="mint")


def share_out(
    args: argparse.Namespace,
    options: RunOptions,
    load: Callable[[], Loaded],
    play: PlayPart,
    *,
    track: str,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Check, write the parts down, and have them played by an engine; `histobench TRACK part` plays one."""
    from histobench.cli.mint_progress import progress_display
    from histobench.cli.mint_summary import print_summary
    from histobench.core import clusters as ray_cluster
    from histobench.core import clusters as slurm
    from histobench.mint.runs import parted_run
    from histobench.mint.runs.parted_run import check_parts, count, outcome_of, plan_parts

    check_engine_flags(args)
    jobs = slurm.read_options(args.slurm, "--slurm")
    tasks = slurm.read_task_number(jobs.pop(slurm.TASKS, None))
    workers = args.workers if args.workers is not None else tasks or WORKERS
    check_parts(workers)
    loaded, output = load()
    if args.engine == "slurm":
        slurm.check_options(jobs)
    else:
        ray_cluster.connect(args.ray_address)
    run = plan_parts(options, workers, (loaded, output), more)
    cells = [cell.cell for cell, _ in loaded]
    counter = count(run, loaded)
    before = counter.standing()
    if before.done == before.total:
        print_summary(output, cells, outcome_of(run, counter))
        return 0
    if args.engine == "slurm":
        job = parted_run.submit(run, jobs, track=track)
        say(
            f"job {job}: {run.parts} tasks play {before.total - before.done} episodes; "
            f"logs in {output}/writers/logs"
        )
        study = "" if track == "mint" else f"{args.study} --runs "
        say(f"histobench {track} table {study}{output} shows what is finished, also while they play")
        return 0
    console = open_terminal(error=True)
    with progress_display(console, counter) as show:
        problems = parted_run.play_on_ray(
            run, lambda: show(outcome_of(run, count(run, loaded)).standing), play
        )
    outcome = outcome_of(run, count(run, loaded), problems)
    print_summary(output, cells, outcome)
    return 0 if outcome.complete else INCOMPLETE
