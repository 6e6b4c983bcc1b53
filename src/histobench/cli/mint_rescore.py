"""Apply a scoring rule to finished runs, without asking any model again.

`strict` is the default rule of histobench; `published` is the published benchmark's, its defects included.
RESULTS is a folder of runs (results.jsonl in the published folders) or of recordings (*.k5.jsonl.gz). An
answer that the new rule does not accept, given with budget left, leaves an episode open: counted as failed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from histobench.mint.envs.state import Budget
    from histobench.mint.results.outcome import EpisodeOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to rescore and how."""
    parser.add_argument("results", help="folder of runs, or of recordings")
    parser.add_argument("--rule", choices=("strict", "published", "recorded"), default="strict")
    parser.add_argument("--data", help="folder of the datasets (default: data/processed)")
    parser.add_argument("--tasks", help="datasets or families, separated by commas (default: all)")
    parser.add_argument(
        "--act", action="store_true", help="also play household episodes again (slow; needs the engine)"
    )
    parser.add_argument("-o", "--output", help="write the new outcomes to this .csv (for `mint table`)")


def run(args: argparse.Namespace) -> None:
    """Print what changes, for each dataset."""
    from histobench.mint.configs.dataset import select_datasets
    from histobench.mint.results.outcome import write_outcome_table
    from histobench.mint.results.rescoring import rescore

    names = [name.strip() for name in args.tasks.split(",")] if args.tasks else None
    wanted = {dataset.name for dataset in select_datasets(names)}
    tasks = _Tasks(Path(args.results), args.data, act=args.act)
    tally: dict[str, _Tally] = defaultdict(_Tally)
    outcomes: list[EpisodeOutcome] = []
    for outcome, messages, budget in _episodes(Path(args.results)):
        if outcome.task not in wanted:
            continue
        task = tasks.find(outcome.task, outcome.task_id)
        if task is None:
            tally[outcome.task].unknown += 1
            continue
        result = rescore(
            messages,
            task,
            args.rule,
            stored_success=outcome.success,
            budget=budget,
            open_env=tasks.open_env if args.act else None,
        )
        tally[outcome.task].add(outcome.success, result.success, result.open)
        outcomes.append(_with_success(outcome, result.success))
    _print(tally, args.rule)
    if args.output:
        write_outcome_table(args.output, outcomes)


class _Tally:
    def __init__(self) -> None:
        self.episodes = self.before = self.after = self.gained = self.lost = self.open = self.unknown = 0

    def add(self, before: bool, after: bool, is_open: bool) -> None:
        self.episodes += 1
        self.before += before
        self.after += after
        self.gained += after and not before
        self.lost += before and not after
        self.open += is_open


class _Tasks:
    """Tasks by dataset and id, read when first asked for."""

    def __init__(self, results: Path, data: str | None, *, act: bool) -> None:
        from histobench.mint.configs.config_variables import DATASET_DIR

        beside = results / ".." / "processed"
        self._data = Path(data) if data else (beside if beside.is_dir() else Path(DATASET_DIR))
        self._act = act
        self._known: dict[str, dict[str, Any]] = {}

    def find(self, dataset: str, task_id: str) -> Any:
        if dataset not in self._known:
            self._known[dataset] = {str(task.task_id): task for task in self._load(dataset)}
        return self._known[dataset].get(task_id)

    def open_env(self, task: Any) -> Any:
        from histobench.mint.envs.opening import open_environment

        return open_environment(task)

    def _load(self, name: str) -> list[Any]:
        from histobench.mint.alfworld.games import find_games
        from histobench.mint.configs.dataset import get_dataset

        dataset = get_dataset(name)
        if name == "alfworld":
            return list(dataset.task_class.load_tasks(str(find_games(self._data, self._data / "..")))[0])
        return dataset.load(self._data)


def _episodes(path: Path) -> Iterator[tuple[EpisodeOutcome, list[str], Budget]]:
    from histobench.mint.envs.state import Budget
    from histobench.mint.replay.recording import SUFFIX, read_recordings
    from histobench.mint.results.stored_episode import find_result_files, read_episodes

    if path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}"))):
        for recording in read_recordings(path):
            texts = [turn.assistant for turn in recording.turns]
            yield recording.outcome, texts, Budget(recording.max_steps, recording.max_propose)
        return
    for file in find_result_files(path):
        for episode in read_episodes(file):
            budget = Budget(episode.cell.max_steps, episode.cell.max_propose_solution)
            yield episode.outcome, episode.messages, budget


def _with_success(outcome: EpisodeOutcome, success: bool) -> EpisodeOutcome:
    from dataclasses import replace

    return replace(outcome, success=success)


def _print(tally: dict[str, _Tally], rule: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("dataset")
    for title in ("episodes", "stored", rule, "gained", "lost", "of these open", "unknown task"):
        table.add_column(title, justify="right")
    for name, row in tally.items():
        table.add_row(
            name,
            str(row.episodes),
            _percent(row.before, row.episodes),
            _percent(row.after, row.episodes),
            *(str(number or "") for number in (row.gained, row.lost, row.open, row.unknown)),
        )
    Console().print(table)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"
