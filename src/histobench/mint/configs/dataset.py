"""A dataset of tasks: which class reads it, which tools belong to it, where its file lies."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.configs import config_variables
from histobench.mint.configs.plugins import get_plugin_tool, plugin_tasks

if TYPE_CHECKING:
    from histobench.mint.tasks.base import Task
    from histobench.mint.tools.base import Tool

#: What published configuration files call this package.
PUBLISHED_PACKAGE = "mint."
DATA_FILE = "test_prompts.json"


@dataclass(frozen=True)
class Dataset:
    """A name, the class of its tasks and their type (family).

    `tool_imports` are (module, class) of its tools where a configuration file names them; else the type's.
    """

    name: str
    task_class: type[Task]
    type: str
    tool_imports: tuple[tuple[str, str], ...] | None = None

    @property
    def is_games(self) -> bool:
        """Whether its tasks are games in a folder of their own, and not lines of a file."""
        return self.type == "decision_making"

    def path(self, data_dir: str | Path) -> Path:
        """Where the tasks are read from: beside the others, or where the class says."""
        folder = Path(data_dir) / self.name
        own = self.task_class.data_path
        if own is not None and not folder.exists():
            return Path(own)
        return folder if self.is_games else folder / DATA_FILE

    def load(self, data_dir: str | Path) -> list[Task]:
        """All its tasks."""
        return list(self.task_class.load_tasks(str(self.path(data_dir)))[0])

    def tools(self) -> list[Tool]:
        """Fresh tools for one episode."""
        imports: Iterable[tuple[str, str]] = config_variables.TASK_TYPE_TO_TOOL_IMPORT.get(self.type, [])
        if self.tool_imports is not None:
            imports = self.tool_imports
        classes = [import_class(module, name) for module, name in imports]
        classes += [get_plugin_tool(name) for name in self.task_class.tool_names]
        return [_made(tool_class) for tool_class in classes]


def known_datasets() -> list[str]:
    """The names of all datasets: the table's first, then those of plug-ins."""
    table = list(config_variables.TASK_INFO_MAP)
    return table + [name for name in plugin_tasks() if name not in table]


def get_dataset(name: str) -> Dataset:
    """The dataset called `name`."""
    info = config_variables.TASK_INFO_MAP.get(name)
    if info is not None:
        return Dataset(name, task_class(info["class"]), info["type"])
    if name in plugin_tasks():
        found = plugin_tasks()[name]
        return Dataset(name, found, found.task_type or name)
    raise HistobenchError(f"unknown dataset {name!r}; {did_you_mean(name, known_datasets())}")


def select_datasets(names: Iterable[str] | None = None) -> list[Dataset]:
    """The named datasets, or all of them; a type (`reasoning`) stands for its datasets."""
    known = [get_dataset(name) for name in known_datasets()]
    if names is None:
        return known
    types = {dataset.type for dataset in known}
    chosen: dict[str, Dataset] = {}
    for name in names:
        for dataset in [d for d in known if d.type == name] if name in types else [get_dataset(name)]:
            chosen[dataset.name] = dataset
    return list(chosen.values())


def task_class(name: str) -> Any:
    """A task class by the name that the table gives it."""
    module, _, attribute = name.rpartition(":")
    return import_class(module or "histobench.mint.tasks", attribute)


def import_class(module: str, name: str) -> Any:
    """A class of a module; published files say `mint.` where this package says `histobench.mint.`."""
    if module.startswith(PUBLISHED_PACKAGE):
        module = f"histobench.{module}"
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HistobenchError(f"no class {name} in the module {module}: {error}") from error
    except Exception as error:  # someone else's module: whatever it raises, say whose it is
        raise HistobenchError(f"cannot import {module}: {type(error).__name__}: {error}") from error


def _made(tool_class: Any) -> Tool:
    try:
        tool: Tool = tool_class()
    except Exception as error:
        what = f"{tool_class.__module__}.{tool_class.__qualname__}"
        raise HistobenchError(
            f"the tool {what} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    return tool
