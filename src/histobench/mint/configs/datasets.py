"""Datasets of tasks: their classes, tools and files, built in or from plug-ins."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.version import installed_entry_points
from histobench.mint.sandbox.visible_files import TASKS
from histobench.mint.tasks.base import Task
from histobench.mint.tools import check_unique_names
from histobench.mint.tools.base import Tool

TOOLS = "histobench.tools"
#: What published configuration files call this package.
PUBLISHED_PACKAGE = "mint."


@functools.cache
def plugin_tools() -> dict[str, type[Tool]]:
    """Tool's name -> class, from the entry points `histobench.tools`."""
    loaded = [tool for _, tool in _loaded(TOOLS, Tool)]
    check_unique_names(loaded)
    return {tool.name: tool for tool in loaded}


@functools.cache
def plugin_tasks() -> dict[str, type[Task]]:
    """Dataset's name -> task class, from the entry points `histobench.tasks`."""
    return dict(_loaded(TASKS, Task))


def _loaded(group: str, base: type) -> list[tuple[str, Any]]:
    found = []
    for entry in installed_entry_points(group):
        try:
            loaded = entry.load()
        except Exception as error:  # someone else's package: say whose, and go no further
            reason = f"{type(error).__name__}: {error}"
            raise HistobenchError(
                f"the plug-in {entry.name!r} ({entry.value}) cannot be loaded: {reason}"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            raise HistobenchError(
                f"entry point {entry.name!r} of {group} is not a {base.__name__} class: {loaded!r}"
            )
        found.append((entry.name, loaded))
    return found


@dataclass(frozen=True)
class TaskDataset:
    """A dataset; `tool_imports` are (module, class) of the tools that a configuration file names."""

    name: str
    task_class: type[Task]
    type: str
    tool_imports: tuple[tuple[str, str], ...] | None = None

    @property
    def is_games(self) -> bool:
        return self.type == "decision_making"

    def path(self, data_dir: str | Path) -> Path:
        """Where the tasks are read from: beside the others, or where the class says."""
        folder = Path(data_dir) / self.name
        own = self.task_class.data_path
        if own is not None and not folder.exists():
            return Path(own)
        return folder if self.is_games else folder / "test_prompts.json"

    def load(self, data_dir: str | Path) -> list[Task]:
        return list(self.task_class.load_tasks(str(self.path(data_dir)))[0])

    def tools(self) -> list[Tool]:
        usual = TASK_TYPE_TO_TOOL_IMPORT.get(self.type, [])
        imports = usual if self.tool_imports is None else self.tool_imports
        classes = [each if isinstance(each, type) else import_class(*each) for each in imports]
        for name in self.task_class.tool_names:
            if name not in plugin_tools():
                raise HistobenchError(f"unknown tool {name!r}; {did_you_mean(name, plugin_tools())}")
            classes.append(plugin_tools()[name])
        try:
            return [tool_class() for tool_class in classes]
        except Exception as error:  # of a class that a user wrote
            raise HistobenchError(f"cannot make the tools of {self.name}: {error!r}") from error


def known_datasets() -> list[str]:
    table = list(TASK_INFO_MAP)
    return table + [name for name in plugin_tasks() if name not in table]


def get_dataset(name: str) -> TaskDataset:
    info = TASK_INFO_MAP.get(name)
    if info is not None:
        found = info["class"]
        return TaskDataset(name, found if isinstance(found, type) else task_class(found), info["type"])
    if plugin := plugin_tasks().get(name):
        return TaskDataset(name, plugin, plugin.task_type or name)
    raise HistobenchError(f"unknown dataset {name!r}; {did_you_mean(name, known_datasets())}")


def select_datasets(names: Iterable[str] | None = None) -> list[TaskDataset]:
    """The named datasets, or all of them; a type (`reasoning`) stands for its datasets."""
    known = [get_dataset(name) for name in known_datasets()]
    if names is None:
        return known
    types = {dataset.type for dataset in known}
    chosen: dict[str, TaskDataset] = {}
    for name in names:
        for dataset in [d for d in known if d.type == name] if name in types else [get_dataset(name)]:
            chosen[dataset.name] = dataset
    return list(chosen.values())


def register(
    dataset: str, task: type[Task], *, type: str = "", tools: Iterable[type[Tool]] | None = None
) -> None:
    """Make a dataset of your own known to this process, by the class of its tasks.

    Parameters
    ----------
    dataset : str
        Its name. Its tasks are in `data/processed/<name>/test_prompts.json` unless the class says where.
    task : type
        A subclass of `Task`.
    type : str, optional
        Its family in results, which selects its tools (default: the class's `task_type`, or the name).
    tools : iterable of type, optional
        Subclasses of `Tool` for the sessions of that family; None keeps the tools of the family.

    Examples
    --------
    >>> import histobench as hb
    >>> from histobench.mint.tasks.base import Task
    >>> class ShoutTask(Task):
    ...     task_name = "reasoning"
    >>> hb.mint.register("shout", ShoutTask)  # then hb.mint.run(agent, "shout")
    """
    family = type or task.task_type or dataset
    TASK_INFO_MAP[dataset] = {"class": task, "type": family}
    if tools is not None:
        TASK_TYPE_TO_TOOL_IMPORT[family] = list(tools)


def task_class(name: str) -> Any:
    """A task class by the name that the table gives it: "module:Class", or the name of a class alone.

    A name alone is one in `histobench.mint.tasks` (any module of that folder), or of the subclass of `Task`
    that was defined last.
    """
    module, _, attribute = name.rpartition(":")
    if module:
        return import_class(module, attribute)
    try:
        return import_class("histobench.mint.tasks", attribute)
    except HistobenchError as error:
        plugin_tasks()  # imports their classes
        kinds: list[type[Task]] = [Task]
        for kind in kinds:  # grows while it is read
            kinds += kind.__subclasses__()
        found = [kind for kind in kinds if kind.__name__ == attribute]
        if not found:
            raise HistobenchError(
                f"no task class {attribute!r}: put its module in the folder of histobench.mint.tasks, "
                f"register it with histobench.mint.register, or write 'module:{attribute}' ({error})"
            ) from error
        return found[-1]


def import_class(module: str, name: str) -> Any:
    """A class of a module of the path or of the current folder; published files say `mint.` for us."""
    if module.startswith(PUBLISHED_PACKAGE):
        module = f"histobench.{module}"
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # a command does not look there by itself
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # someone else's module: whatever it raises, say whose it is
        reason = f"{type(error).__name__}: {error}"
        raise HistobenchError(f"no class {name} in the module {module}: {reason}") from error


DATASET_DIR = "data/processed"
DATA_OUTPUTS_DIR = "data/outputs"

#: dataset -> its task class (a name in histobench.mint.tasks, "module:Class" or the class) and its type.
TASK_INFO_MAP: dict[str, dict[str, Any]] = {
    "gsm8k": {"class": "ReasoningTask", "type": "reasoning"},
    "math": {"class": "ReasoningTask", "type": "reasoning"},
    "hotpotqa": {"class": "ReasoningTask", "type": "reasoning"},
    "mmlu": {"class": "MultipleChoiceTask", "type": "reasoning"},
    "theoremqa": {"class": "TheoremqaTask", "type": "reasoning"},
    "humaneval": {"class": "HumanEvalTask", "type": "code_generation"},
    "mbpp": {"class": "MBPPTask", "type": "code_generation"},
    "alfworld": {"class": "AlfWorldTask", "type": "decision_making"},
}

#: task type -> tools placed in the Python session: (module, class) or the class. ALFWorld adds its own.
TASK_TYPE_TO_TOOL_IMPORT: dict[str, list[tuple[str, str] | type[Tool]]] = {
    "reasoning": [("histobench.mint.tools.wikipedia_search", "WikipediaQueryRun")],
    "code_generation": [],
    "decision_making": [],
}

#: Budgets: k actions, of which at most p proposals.
ENV_CONFIGS: list[dict[str, Any]] = [
    {"max_steps": k, "use_tools": True, "max_propose_solution": p, "count_down": True}
    for k, p in ((5, 2), (4, 2), (3, 2), (2, 2), (1, 1))
]

#: With an expert only the full budget is run.
FEEDBACK_ENV_CONFIGS: list[dict[str, Any]] = [ENV_CONFIGS[0]]

FEEDBACK_TYPES: list[dict[str, str]] = [
    {"pseudo_human_feedback": "no_GT", "feedback_form": "textual"},
    {"pseudo_human_feedback": "no_GT", "feedback_form": "binary"},
    {"pseudo_human_feedback": "GT", "feedback_form": "textual"},
    {"pseudo_human_feedback": "GT", "feedback_form": "binary"},
]

NO_FEEDBACK_PROVIDER: dict[str, Any] = {"agent_class": "None", "model_name": "None"}

#: Experts; each is run with every feedback type. The published headline uses this one.
FEEDBACK_PROVIDER_LIST: list[dict[str, Any]] = [
    {"agent_class": "OpenAIFeedbackAgent", "model_name": "gpt-4-0613"}
]

FEEDBACK_AGENT_DEFAULTS: dict[str, Any] = {"chat_mode": True, "max_tokens": 1024, "temperature": 0.0}

#: Models under test.
EVALUATED_MODEL_LIST: list[dict[str, Any]] = [
    {
        "agent_class": "OpenAILMAgent",
        "config": {
            "model_name": "gpt-3.5-turbo-0613",
            "chat_mode": True,
            "max_tokens": 512,
            "temperature": 0.0,
        },
    }
]
