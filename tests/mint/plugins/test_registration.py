"""Wrong plug-ins are named; classes written for the published benchmark work."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.configs import datasets
from histobench.mint.configs.datasets import get_dataset, import_class, known_datasets, select_datasets
from histobench.mint.envs.action import classify
from histobench.mint.envs.general_env import open_environment
from histobench.mint.tools import get_toolset_description

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


def test_classes_of_the_published_contract_work(
    published_style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_sandbox: Any
) -> None:
    folder = tmp_path / "data" / "doubling"
    folder.mkdir(parents=True)
    (folder / "test_prompts.json").write_text('{"id": "a", "prompt": "2 * 21?", "reference": 42}\n', "utf-8")
    info = {"class": f"{published_style}:DoublingTask", "type": "doubling"}
    monkeypatch.setitem(datasets.TASK_INFO_MAP, "doubling", info)
    monkeypatch.setitem(datasets.TASK_TYPE_TO_TOOL_IMPORT, "doubling", [(published_style, "Doubler")])
    dataset = get_dataset("doubling")
    (task,) = dataset.load(tmp_path / "data")
    tools = dataset.tools()
    assert "[1] double(x: int) -> str\nDoubles a number." in get_toolset_description(tools)
    assert "Task:" in task.in_context_example(use_tool=True, with_feedback=True)
    with open_environment(task, tools, pool=small_sandbox) as env:
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
    monkeypatch.setattr(
        datasets, "installed_entry_points", lambda group: [entry] if group == entry.group else []
    )
    datasets.plugin_tools.cache_clear()
    datasets.plugin_tasks.cache_clear()


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    yield
    datasets.plugin_tools.cache_clear()
    datasets.plugin_tasks.cache_clear()


def test_a_plug_in_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(monkeypatch, "histobench.tasks", "no_such_module:Task")
    with pytest.raises(HistobenchError, match=r"'mine' \(no_such_module:Task\) cannot be loaded"):
        known_datasets()


def test_a_plug_in_brings_its_dataset(published_style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(monkeypatch, "histobench.tasks", f"{published_style}:DoublingTask")
    assert known_datasets()[-1] == "mine"
    assert get_dataset("mine").task_class.__name__ == "DoublingTask"


def test_a_plug_in_that_is_no_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(monkeypatch, "histobench.tools", "pathlib:Path")
    with pytest.raises(HistobenchError, match="not a Tool class"):
        datasets.plugin_tools()


def test_a_family_stands_for_its_datasets() -> None:
    assert [dataset.name for dataset in select_datasets(["code_generation", "mbpp"])] == ["humaneval", "mbpp"]


GUIDE = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables as they were, after the test."""
    for name in ("TASK_INFO_MAP", "TASK_TYPE_TO_TOOL_IMPORT"):
        monkeypatch.setattr(datasets, name, dict(getattr(datasets, name)))


@pytest.mark.slow
@pytest.mark.usefixtures("one_sandbox", "own_tables")
def test_the_guide_runs_as_it_is_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Any,
    replies: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = GUIDE.read_text("utf-8").split("## Add a tool, a task and a dataset")[1].split("\n## ")[0]
    whole, entries = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len((whole + entries).splitlines()) < 80

    def answer(body: dict[str, Any], number: int) -> Any:
        talk = body["messages"]
        width, scale = ("8", "0.25") if "A nucleus is" in talk[0]["content"] else ("60", "0.5")
        if len(talk) == 1:
            return replies.chat(f"<execute>print(microns_to_pixels({width}, {scale}))</execute>")
        return replies.chat(f"<solution>{re.findall('[0-9]+', talk[-1]['content'])[0]}</solution>")

    server.answer = answer
    monkeypatch.chdir(tmp_path)
    exec(whole.replace("http://localhost:8000/v1", server.url), {"__name__": "guide"})
    shown = capsys.readouterr().out
    assert "MODEL: 100.0 % of 2 at k=5" in shown
    # The published way: entries in the tables, and the name of the class alone.
    exec(entries, vars(datasets))
    assert datasets.TASK_INFO_MAP["microns"]["class"] == "MicronsTask"
    assert get_dataset("microns").task_class.__name__ == "MicronsTask"


def test_a_class_in_the_folder_of_tasks_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import histobench.mint.tasks as package

    (tmp_path / "dropped_in.py").write_text(
        "from histobench.mint.tasks.base import Task\n\nclass YourTaskClass(Task):\n    task_name = 'x'\n"
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setitem(datasets.TASK_INFO_MAP, "yours", {"class": "YourTaskClass", "type": "reasoning"})
    assert get_dataset("yours").task_class.__name__ == "YourTaskClass"
