"""`histobench mint replay`: verify this installation on recorded episodes of the published benchmark."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.terminal import open_terminal, whole_lines
from histobench.core.errors import HistobenchError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.mint.replay.gates import Gate
    from histobench.mint.replay.recording import Recording
    from histobench.mint.sandbox import SandboxPool
    from histobench.mint.tasks.base import Task

    Tasks = dict[tuple[str, object], Task]

HOUSEHOLD = "alfworld"
GATES = ("books", "answers", "programs", "episodes", "experts", "metrics")
#: A recorded cell that fills its memory until its time is up takes some six gigabytes.
LEAST_MEMORY_MB, MOST_MEMORY_MB = 2048, 8192
EXECUTING = ("programs", "episodes", "experts")


def replay_flags(parser: argparse.ArgumentParser) -> None:
    """The recordings and how many to play."""
    parser.add_argument("folder", help="folder of recordings (*.k5.jsonl.gz, scorer cases, outcomes, tape)")
    parser.add_argument("--data", help="folder of the datasets (default: processed, next to the recordings)")
    parser.add_argument("--tasks", help="datasets or families, separated by commas (default: all)")
    parser.add_argument("--models", help="recorded runs, separated by commas (default: all)")
    parser.add_argument(
        "--execute",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the recorded code (default: yes)",
    )
    parser.add_argument("--gates", help=f"checks to run, separated by commas (default: {','.join(GATES)})")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="episodes in parallel (default: one per core)",
    )
    parser.add_argument("--limit", type=int, help="episodes of each dataset of each run (default: all)")
    parser.add_argument("--journal", help="file of replayed episodes, to continue a replay that was stopped")
    parser.add_argument(
        "--memory-mb",
        type=int,
        help="memory limit of one episode (default: a share of the free memory)",
    )
    parser.add_argument(
        "--sandbox",
        default="auto",
        help="auto (default), bubblewrap, landlock, gvisor, podman, docker or unsafe",
    )


def replay_command(args: argparse.Namespace) -> int:
    """Verify this installation on recorded episodes of the published benchmark.

    Feeds the recorded messages to the turn loop (books), to the checkers
    (verdicts) and to the sandbox with its tools (execution), recomputes the
    published leaderboard, and prints each rate of agreement next to its target. The
    exit code is 0 if every required rate is reached.

    Example:
      histobench mint replay recordings/ --limit 20
    """

    from histobench.mint.configs.datasets import select_datasets
    from histobench.mint.replay import gates as proof
    from histobench.mint.replay import gates as scoring
    from histobench.mint.replay.recording import read_recordings
    from histobench.mint.sandbox import Limits, open_sandbox

    console = open_terminal()
    folder = Path(args.folder)
    datasets = select_datasets(_names(args.tasks))
    names = [dataset.name for dataset in datasets]
    recordings = [recording for recording in read_recordings(folder) if recording.task in names]
    recordings = _of_models(recordings, _names(args.models))
    wanted = _wanted_gates(args)
    tasks = _load_tasks(folder, args.data, names, need_games=bool(wanted & {"episodes", "experts"}))
    gates = _Gates(open_terminal(error=True))
    if "books" in wanted:
        gates.add(proof.books_gate(recordings))
    if "answers" in wanted and (folder / scoring.REASONING).is_file():
        answers = scoring.score_reasoning(folder, tasks)
        gates.add(proof.scoring_gate("verdicts on recorded answers", answers, proof.REASONING_VERDICTS))
    if wanted & {"programs", "episodes"}:
        limits = Limits(memory_mb=args.memory_mb or _spare_memory_mb(args.workers))
        with open_sandbox(args.sandbox, limits=limits) as pool:
            if "programs" in wanted and (folder / scoring.CODE).is_file():
                gates.add(_programs(console, folder, args, tasks, pool))
            if "episodes" in wanted:
                gates.add(*_execution(console, folder, args, recordings, tasks, names, pool))
    if "experts" in wanted:
        gates.add(*_experts(console, args, tasks))
    if "metrics" in wanted and (folder / "expected_metrics.json").is_file():
        gates.add(proof.metrics_gate(folder))
    _print(gates.all)
    return int(proof.failed(gates.all))


class _Gates:
    """The checks so far; each is printed as soon as it is known, because the next may take minutes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self.all: list[Gate] = []

    def add(self, *gates: Gate) -> None:
        """Keep and tell."""
        self.all += gates
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        for gate in gates:
            told = f"{minutes:3}:{seconds:02}  {gate.subject.strip()}: {gate.agreeing} of {gate.total}"
            self._console.print(f"{told}  {gate.verdict}".rstrip())


def _wanted_gates(args: argparse.Namespace) -> set[str]:
    names = _names(args.gates) or list(GATES)
    for name in names:
        if name not in GATES:
            raise HistobenchError(f"unknown gate {name!r}; {did_you_mean(name, GATES)}")
    return {name for name in names if args.execute or name not in EXECUTING}


def _spare_memory_mb(workers: int) -> int:
    """An equal share of four fifths of the free memory, within reason."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) >> 10
    except (OSError, StopIteration):
        free = 0
    return min(MOST_MEMORY_MB, max(LEAST_MEMORY_MB, free * 4 // 5 // max(1, workers)))


def _programs(
    console: Console, folder: Path, args: argparse.Namespace, tasks: Tasks, pool: SandboxPool
) -> Gate:
    from histobench.mint.replay import gates as proof
    from histobench.mint.replay import gates as scoring

    with _progress(console) as progress:
        bar = progress.add_task("testing recorded programs", total=None)
        cases = scoring.score_code(
            folder,
            tasks,
            pool=pool,
            workers=args.workers,
            limit=args.limit,
            done=lambda: progress.advance(bar),
        )
    return proof.scoring_gate("verdicts on recorded programs", cases, proof.CODE_VERDICTS)


def _execution(
    console: Console,
    folder: Path,
    args: argparse.Namespace,
    recordings: Sequence[Recording],
    tasks: Tasks,
    names: Sequence[str],
    pool: SandboxPool,
) -> list[Gate]:
    from histobench.mint.replay import gates as proof
    from histobench.mint.replay.gates import Journal, environment_opener, python_of_runs
    from histobench.mint.tools.wikipedia_search import Tape, WikipediaQueryRun

    chosen = [r for r in proof.sample(recordings, args.limit) if (r.task, r.task_id) in tasks]
    left_out = {recording.task for recording in recordings} - {recording.task for recording in chosen}
    if left_out:
        console.print(f"not played again, because their tasks are not here: {', '.join(sorted(left_out))}")
    tape = folder / "wiki_tape.json.gz"
    search = [WikipediaQueryRun(Tape(tape))] if tape.is_file() else []
    searching = ("gsm8k", "math", "hotpotqa", "mmlu", "theoremqa")
    with _progress(console) as progress:
        bar = progress.add_task("playing recorded episodes", total=len(chosen))
        replayed = proof.execute(
            chosen,
            environment_opener(
                tasks, dict.fromkeys(searching, search), pool=pool, pythons=python_of_runs(recordings)
            ),
            workers=args.workers,
            journal=Journal(args.journal),
            done=lambda _: progress.advance(bar),
        )
    return proof.execution_gates(replayed, names)


def _experts(console: Console, args: argparse.Namespace, tasks: Tasks) -> list[Gate]:
    from histobench.mint.alfworld.simulator import shared_simulator
    from histobench.mint.replay.gates import experts_gate
    from histobench.mint.tasks.alfworld import AlfWorldTask

    games = [task.game_file for task in tasks.values() if isinstance(task, AlfWorldTask)]
    games = games[: args.limit] if args.limit else games
    if not games:
        return []
    with _progress(console) as progress:
        bar = progress.add_task("playing the experts' games", total=len(games))
        gate = experts_gate(
            games, shared_simulator(), workers=args.workers, done=lambda: progress.advance(bar)
        )
    return [gate]


def _load_tasks(folder: Path, data: str | None, names: Sequence[str], *, need_games: bool) -> Tasks:
    from histobench.mint.alfworld import simulator
    from histobench.mint.alfworld.games import find_games
    from histobench.mint.configs.datasets import DATASET_DIR, get_dataset

    places = [Path(data)] if data else [folder / ".." / "processed", Path(DATASET_DIR)]
    place = next((path for path in places if path.is_dir()), None)
    if place is None:
        raise HistobenchError(
            f"no datasets in {' or '.join(map(str, places))}; run scripts/setup.sh or give --data FOLDER"
        )
    tasks: Tasks = {}
    for name in names:
        dataset = get_dataset(name)
        if name == HOUSEHOLD:
            if not need_games or simulator.missing_packages():
                continue
            loaded = list(dataset.task_class.load_tasks(str(find_games(place, place / "..")))[0])
        else:
            loaded = dataset.load(place)
        tasks.update({(name, task.task_id): task for task in loaded})
    return tasks


def _of_models(recordings: list[Recording], models: list[str] | None) -> list[Recording]:
    if models is None:
        return recordings
    known = {recording.run for recording in recordings}
    for model in models:
        if model not in known:
            raise HistobenchError(f"no recordings of {model!r}; {did_you_mean(model, known)}")
    return [recording for recording in recordings if recording.run in models]


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def _progress(console: Console) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _print(gates: Sequence[Gate]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("gate")
    for title in ("agreeing", "of", "rate", "required"):
        table.add_column(title, justify="right")
    table.add_column("")
    table.add_column("note", overflow="fold")
    colours = {"PASS": "green", "FAIL": "bold red", "": ""}
    for gate in gates:
        table.add_row(
            gate.subject,
            str(gate.agreeing),
            str(gate.total),
            "-" if gate.rate is None else f"{100 * gate.rate:.2f} %",
            "" if gate.required is None else f"{100 * gate.required:g} %",
            Text(gate.verdict, style=colours[gate.verdict]),
            gate.note,
        )
    whole_lines().print(table)
