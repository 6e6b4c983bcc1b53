"""Wrong plug-ins are named; classes written for the published benchmark work."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.configs import config_variables, plugins
from histobench.mint.configs.dataset import get_dataset, import_class, known_datasets, select_datasets
from histobench.mint.envs.action import classify
from histobench.mint.envs.opening import open_environment
from histobench.mint.tools import Tool, get_toolset_description

#: As the published contract tells contributors to write them, but for the import lines.
PUBLISHED_STYLE = '''
from typing import Any, List, Tuple
from histobench.mint.tools.base import Tool
from histobench.mint.tasks.base import Task

class Doubler(Tool):
    """Doubles."""

    name = "double"
    signature = "double(x: int) -> str"
    description = """Doubles a number.
For example: double(2)
"""

    def __call__(self, x: int) -> str:
        return str(2 * x)

class DoublingTask(Task):
    task_name = "reasoning"

    def __init__(self, id: str, prompt: str, reference: str, **kwargs):
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt.strip()
        self._reference = str(reference).strip().lower()
        self.metadata.update({"kind": "doubling"})

    def extract_answer(self, solution: str) -> str:
        return solution.lower().strip()

    def success(self, solution: str) -> bool:
        answer = self.extract_answer(solution)
        return answer == self._reference
'''


@pytest.fixture
def published_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with such classes."""
    (tmp_path / "doubling_example.py").write_text(PUBLISHED_STYLE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "doubling_example"


@pytest.mark.usefixtures("needs_sandbox")
def test_classes_of_the_published_contract_work(
    published_style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "doubling"
    folder.mkdir(parents=True)
    (folder / "test_prompts.json").write_text('{"id": "a", "prompt": "2 * 21?", "reference": 42}\n', "utf-8")
    info = {"class": f"{published_style}:DoublingTask", "type": "doubling"}
    monkeypatch.setitem(config_variables.TASK_INFO_MAP, "doubling", info)
    monkeypatch.setitem(config_variables.TASK_TYPE_TO_TOOL_IMPORT, "doubling", [(published_style, "Doubler")])
    dataset = get_dataset("doubling")
    (task,) = dataset.load(tmp_path / "data")
    tools = dataset.tools()
    assert "[1] double(x: int) -> str\nDoubles a number." in get_toolset_description(tools)
    assert "Task:" in task.in_context_example(use_tool=True, with_feedback=True)
    with open_environment(task, tools) as env:
        outcome = env.outcome(classify("<execute>print(double(21))</execute>"))
        assert outcome.observation == "42"
        assert not env.outcome(classify("<solution>41</solution>")).success
        assert env.outcome(classify("<solution> 42 </solution>")).success
    assert task.to_dict()["metadata"] == {"kind": "doubling"}


def test_published_configuration_files_name_this_package() -> None:
    assert import_class("mint.tools.wikipedia_search", "WikipediaQueryRun").name == "wikipedia_search"
    with pytest.raises(HistobenchError, match="no class Nothing in the module"):
        import_class("mint.tools.base", "Nothing")


def _entry(monkeypatch: pytest.MonkeyPatch, group: str, value: str) -> None:
    entry = importlib.metadata.EntryPoint("mine", value, group)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == entry.group else [])
    plugins.plugin_tools.cache_clear()
    plugins.plugin_tasks.cache_clear()


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    yield
    plugins.plugin_tools.cache_clear()
    plugins.plugin_tasks.cache_clear()


def test_a_plug_in_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(monkeypatch, "histobench.tasks", "no_such_module:Task")
    with pytest.raises(HistobenchError, match=r"'mine' \(no_such_module:Task\) cannot be loaded"):
        known_datasets()


def test_a_plug_in_that_is_no_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(monkeypatch, "histobench.tools", "pathlib:Path")
    with pytest.raises(HistobenchError, match="no Tool class"):
        plugins.plugin_tools()


def test_an_unknown_dataset_gets_a_suggestion() -> None:
    with pytest.raises(HistobenchError, match="did you mean gsm8k"):
        select_datasets(["gsm8"])


def test_a_family_stands_for_its_datasets() -> None:
    assert [dataset.name for dataset in select_datasets(["code_generation", "mbpp"])] == ["humaneval", "mbpp"]


def test_two_tools_with_one_name_are_refused() -> None:
    class Other(Tool):
        name = "twice"
        signature = description = ""

        def __call__(self) -> str:
            return ""

    with pytest.raises(HistobenchError, match="two tools are called 'twice'"):
        get_toolset_description([Other(), Other()])
