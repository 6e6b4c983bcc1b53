"""Verify the checkout on recorded episodes of the published benchmark; `make reproduce` runs this.

Feeds the recorded messages to the turn loop (books), to the checkers (verdicts) and to the sandbox with its
tools (execution), recomputes the published leaderboard, and prints each rate of agreement next to its target.
The exit code is 0 if every required rate is reached.

    make reproduce RECORDINGS=folder REPRODUCE="--limit 20 --gates books,episodes"
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from histobench.cli.terminal import open_terminal
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.alfworld import simulator
from histobench.mint.alfworld.games import find_games
from histobench.mint.configs.datasets import DATASET_DIR, get_dataset, select_datasets
from histobench.mint.results.recording import Recording, read_recordings
from histobench.mint.sandbox import Limits, SandboxPool, open_sandbox
from histobench.mint.tasks.alfworld import AlfWorldTask
from histobench.mint.tasks.base import Task
from histobench.mint.tools.wikipedia_search import Tape, WikipediaQueryRun
from reproduction import gates as proof
from reproduction.gates import Gate

Tasks = dict[tuple[str, object], Task]
GATES = ("books", "answers", "programs", "episodes", "experts", "metrics")
#: A recorded cell that fills its memory until its time is up takes some six gigabytes.
LEAST_MEMORY_MB, MOST_MEMORY_MB = 2048, 8192


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gates; print them; say whether one failed."""
    args = _arguments(argv)
    console = open_terminal()
    folder = Path(args.folder)
    try:
        return _reproduce(console, folder, args)
    except HistobenchError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="folder of recordings (*.k5.jsonl.gz, scorer cases, outcomes, tape)")
    parser.add_argument("--data", help="folder of the datasets (default: processed, next to the recordings)")
    parser.add_argument("--tasks", help="datasets or families, separated by commas (default: all)")
    parser.add_argument("--models", help="recorded runs, separated by commas (default: all)")
    parser.add_argument("--gates", help=f"checks to run, separated by commas (default: {','.join(GATES)})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="episodes in parallel")
    parser.add_argument("--limit", type=int, help="episodes of each dataset of each run (default: all)")
    parser.add_argument("--memory-mb", type=int, help="memory of one episode (default: a share of the free)")
    parser.add_argument("--sandbox", default="auto", help="backend of the sandbox (default: auto)")
    return parser.parse_args(argv)


def _reproduce(console: Console, folder: Path, args: argparse.Namespace) -> int:
    names = [dataset.name for dataset in select_datasets(_names(args.tasks))]
    recordings = [recording for recording in read_recordings(folder) if recording.task in names]
    recordings = _of_models(recordings, _names(args.models))
    wanted = _wanted_gates(args)
    tasks = _load_tasks(folder, args.data, names, need_games=bool(wanted & {"episodes", "experts"}))
    gates = _Gates(console)
    if "books" in wanted:
        gates.add(proof.books_gate(recordings))
    if "answers" in wanted and (folder / proof.REASONING).is_file():
        answers = proof.score_reasoning(folder, tasks)
        gates.add(proof.scoring_gate("verdicts on recorded answers", answers, proof.REASONING_VERDICTS))
    if wanted & {"programs", "episodes"}:
        limits = Limits(memory_mb=args.memory_mb or _spare_memory_mb(args.workers))
        with open_sandbox(args.sandbox, limits=limits) as pool:
            if "programs" in wanted and (folder / proof.CODE).is_file():
                gates.add(_programs(console, folder, args, tasks, pool))
            if "episodes" in wanted:
                gates.add(*_execution(console, folder, args, recordings, tasks, names, pool))
    if "experts" in wanted:
        gates.add(*_experts(console, args, tasks))
    if "metrics" in wanted and (folder / "expected_metrics.json").is_file():
        gates.add(proof.metrics_gate(folder))
    return int(any(gate.verdict == "FAIL" for gate in gates.all))


class _Gates:
    """The checks so far; each is printed as soon as it is known, because the next may take minutes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self.all: list[Gate] = []

    def add(self, *gates: Gate) -> None:
        self.all += gates
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        for gate in gates:
            rate = "" if gate.rate is None else f" ({100 * gate.rate:.2f} %)"
            needed = "" if gate.required is None else f", required {100 * gate.required:g} %: {gate.verdict}"
            count = f"{minutes:3}:{seconds:02}  {gate.subject}: {gate.agreeing} of {gate.total}{rate}{needed}"
            self._console.print(f"{count}  {gate.note}".rstrip(), markup=False, highlight=False)


def _wanted_gates(args: argparse.Namespace) -> set[str]:
    names = _names(args.gates) or list(GATES)
    for name in names:
        if name not in GATES:
            raise HistobenchError(f"unknown gate {name!r}; {did_you_mean(name, GATES)}")
    return set(names)


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

    with _progress(console) as progress:
        bar = progress.add_task("testing recorded programs", total=None)
        cases = proof.score_code(
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
            proof.environment_opener(
                tasks, dict.fromkeys(searching, search), pool=pool, pythons=proof.python_of_runs(recordings)
            ),
            workers=args.workers,
            done=lambda: progress.advance(bar),
        )
    return proof.execution_gates(replayed, names)


def _experts(console: Console, args: argparse.Namespace, tasks: Tasks) -> list[Gate]:

    games = [task.game_file for task in tasks.values() if isinstance(task, AlfWorldTask)]
    games = games[: args.limit] if args.limit else games
    if not games:
        return []
    with _progress(console) as progress:
        bar = progress.add_task("playing the experts' games", total=len(games))
        gate = proof.experts_gate(
            games, simulator.shared_simulator(), workers=args.workers, done=lambda: progress.advance(bar)
        )
    return [gate]


def _load_tasks(folder: Path, data: str | None, names: Sequence[str], *, need_games: bool) -> Tasks:

    places = [Path(data)] if data else [folder / ".." / "processed", Path(DATASET_DIR)]
    place = next((path for path in places if path.is_dir()), None)
    if place is None:
        raise HistobenchError(
            f"no datasets in {' or '.join(map(str, places))}; run scripts/setup.sh or give --data FOLDER"
        )
    tasks: Tasks = {}
    for name in names:
        dataset = get_dataset(name)
        if name == proof.HOUSEHOLD:
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


def _progress(console: Console) -> Progress:

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


if __name__ == "__main__":
    sys.exit(main())
