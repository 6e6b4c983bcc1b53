"""The published datasets are all there and have the published sizes."""

from __future__ import annotations

from pathlib import Path

from histobench.mint.alfworld.games import find_games
from histobench.mint.configs.datasets import select_datasets

SIZES = {
    "gsm8k": 48,
    "math": 100,
    "hotpotqa": 43,
    "mmlu": 76,
    "theoremqa": 49,
    "humaneval": 45,
    "mbpp": 91,
    "alfworld": 134,
}


def test_586_instances_in_eight_datasets(shared_dir: Path) -> None:
    sizes = {}
    for dataset in select_datasets():
        if dataset.name == "alfworld":
            tasks = list(dataset.task_class.load_tasks(str(find_games(shared_dir / "mint")))[0])
        else:
            tasks = dataset.load(shared_dir / "mint" / "processed")
        assert len({task.task_id for task in tasks}) == len(tasks)
        sizes[dataset.name] = len(tasks)
    assert sizes == SIZES
    assert sum(sizes.values()) == 586


def test_tools_follow_the_family() -> None:
    tools = {dataset.name: [tool.name for tool in dataset.tools()] for dataset in select_datasets()}
    searching = {name for name, names in tools.items() if names == ["wikipedia_search"]}
    assert searching == {"gsm8k", "math", "hotpotqa", "mmlu", "theoremqa"}
    assert all(names == [] for name, names in tools.items() if name not in searching)
