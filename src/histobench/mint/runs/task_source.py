"""Where the tasks of a run come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes
from histobench.mint.configs.datasets import DATASET_DIR, TaskDataset, select_datasets
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.reasoning import ReasoningTask
from histobench.mint.tools.base import Tool
from histobench.mint.tools.wikipedia_search import Encyclopedia, WikipediaQueryRun

#: Sums that a model of 135 million parameters can sometimes do; what is run where no tasks are named.
NAME = "quickstart"
#: Word problems in the manner of gsm8k, for models that can do more.
STARTER = "starter"
BUILT_IN = (NAME, STARTER)


class QuickstartTask(ReasoningTask):
    """One sum; too few and too easy to say how good a model is."""

    task_type = "reasoning"
    data_path = Path(__file__).parent / "quickstart_tasks.jsonl"


class StarterTask(ReasoningTask):
    """Short arithmetic, in the manner of gsm8k; too few to say how good a model is."""

    task_type = "reasoning"
    data_path = Path(__file__).parent / "starter_tasks.jsonl"


def built_in_dataset(name: str) -> TaskDataset:
    return TaskDataset(name, QuickstartTask if name == NAME else StarterTask, "reasoning")


def choose_datasets(names: Iterable[str]) -> list[TaskDataset]:
    chosen: dict[str, TaskDataset] = {}
    for name in names:
        for dataset in [built_in_dataset(name)] if name in BUILT_IN else select_datasets([name]):
            chosen[dataset.name] = dataset
    if not chosen:
        raise HistobenchError(
            "no tasks are named; give `tasks`, such as `tasks` gsm8k,math or `tasks` quickstart"
        )
    return list(chosen.values())


def tasks_path(dataset: TaskDataset, data: str | Path | None) -> Path:
    place = Path(data) if data else Path(DATASET_DIR)
    if place.is_file():
        return place
    if dataset.is_games:
        from histobench.mint.alfworld.games import find_games

        return find_games(place, place / "..")
    return dataset.path(place)


def tasks_checksum(dataset: TaskDataset, data: str | Path | None) -> str | None:
    path = tasks_path(dataset, data)
    if path.is_dir():
        from histobench.mint.alfworld.games import LIST

        path = path / LIST
    return hashlib.sha256(read_bytes(path)).hexdigest() if path.is_file() else None


def load_tasks(dataset: TaskDataset, data: str | Path | None, limit: int | None = None) -> list[Task]:
    path = tasks_path(dataset, data)
    shared = dataset.task_class.load_tasks.__func__ is Task.load_tasks.__func__  # type: ignore[attr-defined]
    if shared and not path.exists():  # a class with its own `load_tasks` may not need the file
        raise HistobenchError(
            f"no tasks of {dataset.name} at {path}; give `data` or `tasks` quickstart, or in a clone run "
            "scripts/setup.sh"
        )
    try:
        tasks = list(dataset.task_class.load_tasks(str(path))[0])
    except HistobenchError:
        raise
    except Exception as error:  # a class of someone's own: a key that it does not know, another format
        name = dataset.task_class.__name__
        raise HistobenchError(f"{path}: {name} cannot read it ({type(error).__name__}: {error})") from error
    if not tasks:
        raise HistobenchError(f"{path} holds no tasks")
    _check_ids(path, tasks)
    return tasks if limit is None else tasks[:limit]


def _check_ids(path: Path, tasks: Sequence[Task]) -> None:
    """An episode is known by its task's id: of two tasks with one id, a resumed run would lose one."""
    twice = [task_id for task_id, n in Counter(str(task.task_id) for task in tasks).items() if n > 1]
    if twice:
        raise HistobenchError(f"{path}: more than one task has the id {twice[0]!r}; ids must differ")


def searches(dataset: TaskDataset) -> bool:
    return any(isinstance(tool, WikipediaQueryRun) for tool in dataset.tools())


def episode_tools(dataset: TaskDataset, encyclopedia: Encyclopedia | None) -> Sequence[Tool]:
    tools = dataset.tools()
    if encyclopedia is None:
        return tools
    return [
        WikipediaQueryRun(encyclopedia) if isinstance(tool, WikipediaQueryRun) else tool for tool in tools
    ]
