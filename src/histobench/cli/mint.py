"""`histobench mint`: benchmark language models as agents with tools, code and feedback."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.entry import Command
from histobench.cli.flags import WorkersFlags, check_engine_flags, engine_of
from histobench.cli.terminal import labelled, open_terminal, print_table, say
from histobench.core.errors import HistobenchError
from histobench.core.records import add_flags, option, options_of, record
from histobench.core.text import duration
from histobench.mint.runs.run_options import RunOptions

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.mint.configs.cell import Cell
    from histobench.mint.runs.episode_queue import EpisodeCounter, RunOutcome, Standing
    from histobench.mint.runs.parted_run import PartedRun
    from histobench.mint.runs.play import Loaded
    from histobench.work.engines import Engine


MINT_COMMANDS = {
    "run": Command("mint:run", "run a language model on tasks, with or without expert feedback"),
    "rescore": Command("mint_rescore:rescore", "apply a scoring rule to finished runs"),
    "table": Command("mint_results:table", "print the leaderboard of finished runs"),
    "grade": Command("mint_results:grade", "let other models grade answers against a rubric"),
    "compare": Command("mint_results:compare", "compare two agents on the same tasks, with a paired test"),
    "export": Command("mint_results:export", "export finished runs as JSON lines or Inspect logs"),
    "import": Command("mint_results:import", "import Inspect logs of any benchmark as a table of outcomes"),
    "configs": Command("mint:configs", "write the experiment matrix as JSON files"),
}


def mint_command() -> None:
    """Benchmark language models as agents that solve tasks in several turns with
    tools, code and feedback.

    Examples:
      histobench mint run                     a small local model, a few tasks
      histobench mint table outputs/          the leaderboard
      histobench mint configs configs/        the published matrix as JSON files
      histobench mint rescore outputs/ --rule strict
    """


#: Where there is no terminal, a line is printed about this often.
PRINT_EVERY_S = 30.0


@contextmanager
def progress_display(console: Console, counter: EpisodeCounter) -> Iterator[Callable[[Standing], None]]:
    """A bar on a terminal, a line now and then elsewhere; yields a function that shows progress."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    first = counter.standing()
    if first.earlier:
        console.print(f"{first.earlier} of {first.total} episodes are on disk already")
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(described(first), total=first.total, completed=first.done)

        def show(standing: Standing) -> None:
            progress.update(bar, completed=standing.done + standing.failures, description=described(standing))

        yield show


def described(standing: Standing) -> str:
    rate = standing.success_rate
    parts = ["no success yet" if rate is None else f"success {rate:.1f} %", f"{standing.tokens:,} tokens"]
    if standing.spent:  # what has no price is said once, at the end
        parts.append(f"${standing.spent:.4f}")
    if standing.failures:
        parts.append(f"{standing.failures} to repeat")
    if standing.seconds_left is not None:
        parts.append(f"{duration(standing.seconds_left)} left")
    return " · ".join(parts)


def _line_printer(console: Console) -> Callable[[Standing], None]:
    last = time.monotonic()

    def show(standing: Standing) -> None:
        nonlocal last
        if time.monotonic() - last >= PRINT_EVERY_S:
            last = time.monotonic()
            console.print(f"{standing.done} of {standing.total} · {described(standing)}")

    return show


#: Exit code of a run of agents that has episodes left to play.
INCOMPLETE = 1


def print_summary(output: Path, cells: Sequence[Cell], outcome: RunOutcome) -> None:
    """Print a line per model and dataset, then what is missing and how to continue."""
    from histobench.mint.configs.cell import NONE
    from histobench.mint.results.episode_outcome import mean_tokens
    from histobench.mint.results.stored_episode import read_cell
    from histobench.mint.results.uncertainty import rate_interval

    console = open_terminal()
    rows = []
    for cell in cells:
        if not (episodes := read_cell(output, cell)):
            continue
        n, outcomes = len(episodes), [episode.outcome for episode in episodes]
        interval, tokens = rate_interval(outcomes), mean_tokens(outcomes)
        low, high = interval.low, interval.high
        feedback = "-" if cell.feedback_model == NONE else f"{cell.feedback_model} {cell.feedback_type}"
        rows.append(
            {
                "model": cell.model,
                "dataset": cell.dataset,
                "feedback": feedback,
                "k": str(cell.max_steps),
                "episodes": str(n),
                "success": f"{100 * sum(one.success for one in outcomes) / n:.1f} %",
                "95 % interval": "" if low is None else f"{100 * low:.1f} - {100 * (high or 0):.1f}",
                "turns": f"{sum(len(one.state['history']) // 2 for one in episodes) / n:.1f}",
                "invalid": f"{sum(one.invalid for one in outcomes) / n:.2f}",
                "tokens": "-" if tokens is None else f"{tokens:,.0f}",
            }
        )
    print_table(rows, console, lead=2)
    standing = outcome.standing
    new = standing.done - standing.earlier
    line = f"{standing.done} of {standing.total} episodes in {output}"
    if new:
        line += f"; {new} new in {duration(standing.seconds)}, {standing.tokens:,} tokens"
    if standing.spent or standing.unpriced:
        line += f", ${standing.spent:.4f}"
    if standing.unpriced:
        line += f" + {standing.unpriced} answers of unknown price"
    console.print(line)
    for problem in outcome.problems:
        console.print(labelled("not counted as a failure of the model:", "yellow", problem))
    if outcome.stopped:
        console.print(labelled("stopped:", "yellow", outcome.stopped))
    if not outcome.complete:
        missing = standing.total - standing.done
        console.print(f"{missing} episodes are missing; repeat the same command to continue")


def run_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [*options_of(RunOptions), *options_of(WorkersFlags)])
    parser.add_argument("--no-gt", dest="gt", action="store_false", default=None, help=argparse.SUPPRESS)


def run_command(args: argparse.Namespace) -> int:
    """Run a language model on tasks, with or without expert feedback, and keep
    every episode.

    Agents: openai:MODEL, openai:MODEL@http://host/v1 (vLLM, Ollama, llama.cpp,
    ...), vllm:MODEL@http://host/v1, responses:MODEL, anthropic:MODEL,
    gemini:MODEL, local: (a small model that needs no key), local:FILE.gguf,
    replay:FILE, human. Keys: OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY;
    for an address of your own, HISTOBENCH_API_KEY.

    Repeat the same command to continue a run that was stopped or killed.

    Examples:
      histobench mint run --constrain         a small local model, eight tasks
      histobench mint run --constrain --limit 4 --k 2
      histobench mint run --agent openai:gpt-4o-mini --tasks gsm8k,math --k 1..5 --max-cost 5
      histobench mint run --agent openai:M@http://localhost:8000/v1 --tasks reasoning --feedback openai:gpt-4o
      histobench mint run --config configs/ --results data/outputs
      histobench mint run --agent openai:M@http://node:8000/v1 --tasks reasoning --engine slurm --workers 8
    """
    from histobench.mint.runs.parted_run import PartedRun
    from histobench.mint.runs.play import load_cells, play

    check_engine_flags(args)
    options = RunOptions.of(args)
    if engine_of(args) != "local":
        return share_out(args, options, lambda: load_cells(options), PartedRun)
    console = open_terminal(error=True)
    played = play(options, lambda counter: progress_display(console, counter))
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    return 0 if played.outcome.complete else INCOMPLETE


#: Seconds between two looks at how far the workers are.
GLANCE_SECONDS = 5.0


def share_out(
    args: argparse.Namespace,
    options: RunOptions,
    load: Callable[[], Loaded],
    kind: type[PartedRun],
    more: Mapping[str, Any] | None = None,
) -> int:
    """Check the run, write its parts and let an engine play them."""
    from histobench.mint.runs.parted_run import check_parts, keys
    from histobench.mint.runs.writers import beginning
    from histobench.work.clusters import read_options
    from histobench.work.engines import RayEngine, SlurmEngine

    slurm = SlurmEngine(read_options(args.slurm, "--slurm"), environment=keys())
    workers = args.workers if args.workers is not None else slurm.tasks[True] or 4
    check_parts(workers)
    loaded, output = load()
    engine: Engine = slurm if args.engine == "slurm" else RayEngine(args.ray_address, keys())
    engine.check()
    with beginning(output):
        outcome = _play_parts(engine, options, workers, (loaded, output), kind, more)
    if outcome is None:
        study = "" if kind.track == "mint" else f"{args.study} --results "
        say(f"Next: histobench {kind.track} table {study}{output}   (also while the jobs run)")
        return 0
    print_summary(output, [cell.cell for cell, _ in loaded], outcome)
    return 0 if outcome.complete else INCOMPLETE


def _play_parts(
    engine: Engine,
    options: RunOptions,
    workers: int,
    cells: Loaded,
    kind: type[PartedRun],
    more: Mapping[str, Any] | None,
) -> RunOutcome | None:
    """How the run ended; None where jobs play it after this process."""
    from histobench.mint.runs.parted_run import count, outcome_of, plan_parts
    from histobench.work.engines import Display

    loaded, _ = cells
    run = plan_parts(options, workers, cells, more, kind=kind, engine=engine.name)
    counter = count(run, loaded)
    before = counter.standing()
    if before.done == before.total:
        for unit in run.units():
            run.finish(unit, problems=[])
        return outcome_of(run, counter)
    if engine.name == "slurm":
        engine.run(run, Display(say=say))
        say(f"{workers} tasks play {before.total - before.done} episodes; logs in {run.path}/logs")
        return None
    with progress_display(open_terminal(error=True), counter) as show:
        looked = 0.0

        def look(_: str) -> None:
            """Show every few seconds how far the workers are, whenever the engine says something."""
            nonlocal looked
            if time.monotonic() - looked > GLANCE_SECONDS:
                with contextlib.suppress(HistobenchError, OSError):  # a failure must not end the workers
                    show(outcome_of(run, count(run, loaded)).standing)
                looked = time.monotonic()

        engine.run(run, Display(say=look))
        outcome = outcome_of(run, count(run, loaded))
        show(outcome.standing)
    return outcome


@record
class ConfigsFlags:
    out: str = option("folder to write to", default="", positional=True, required=True, metavar="FOLDER")
    model: tuple[str, ...] = option(
        "model to use instead of the published ones; repeatable", default=(), metavar="NAME"
    )
    tasks: tuple[str, ...] = option("datasets or families", default=(), default_text="all")


def configs_command(args: ConfigsFlags) -> None:
    """Write the experiment matrix as JSON files, one per cell, in the published
    folder layout.

    The matrix is defined in histobench.mint.configs.datasets;
    docs/reference/agent-configs.md explains it.

    Example:
      histobench mint configs configs/ --tasks gsm8k
    """
    from histobench.mint.configs import datasets
    from histobench.mint.configs.datasets import select_datasets
    from histobench.mint.configs.matrix import write_configs

    names = list(args.tasks) or None
    agents = None
    if args.model:
        first = datasets.EVALUATED_MODEL_LIST[0]
        agents = [{**first, "config": {**first["config"], "model_name": name}} for name in args.model]
    written = write_configs(args.out, agents=agents, datasets=select_datasets(names))
    say(f"{len(written)} configurations written to {args.out}")
