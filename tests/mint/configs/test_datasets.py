"""The published datasets are all there and have the published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.alfworld.games import find_games
from histobench.mint.configs import datasets
from histobench.mint.configs.datasets import select_datasets
from histobench.mint.configs.matrix import write_configs
from histobench.mint.runs.config_file import read_configs
from histobench.mint.runs.task_source import load_tasks
from histobench.mint.tasks.base import Task, read_records
from histobench.mint.tasks.reasoning import ReasoningTask
from histobench.mint.tools.base import Tool

SIZES = {"gsm8k": 48, "math": 100, "hotpotqa": 43, "mmlu": 76, "theoremqa": 49}
SIZES |= {"humaneval": 45, "mbpp": 91, "alfworld": 134}


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


class Shout(Tool):
    name, signature, description = "shout", "shout(text: str) -> str", "Shouts."

    def __call__(self, text: str) -> str:
        return text.upper()


class OwnLoaderTask(ReasoningTask):
    @classmethod
    def load_tasks(cls, path: str) -> tuple[list[Task], int]:
        return [cls(0, "What?", "12")], 1  # no file is read


def test_the_published_guide_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.TASK_INFO_MAP, "own", {"class": "OwnLoaderTask", "type": "shouting"})
    monkeypatch.setitem(datasets.TASK_TYPE_TO_TOOL_IMPORT, "shouting", [Shout])  # a list of tools
    own = datasets.get_dataset("own")
    assert [type(tool) for tool in own.tools()] == [Shout]
    assert len(load_tasks(own, tmp_path)) == 1
    file = next(path for path in write_configs(tmp_path, datasets=[own]) if "F=None" in str(path))
    config = json.loads(file.read_text())
    config["feedback_config"]["feedback_agent_config"] = "None"
    file.write_text(json.dumps(config))
    assert read_configs(file)[0][0].expert is None


def test_a_line_that_is_not_json_is_named_by_its_number(tmp_path: Path) -> None:
    good = json.dumps({"id": 1, "prompt": "?", "reference": "1"})
    (tmp_path / "t.json").write_text(f"{good}\n\n{good}\n{{\n")
    with pytest.raises(HistobenchError, match=r"t\.json:4: not a JSON object"):
        read_records(tmp_path / "t.json")
