"""Tools and tasks from other packages, found by their entry points."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.sandbox.withheld import TASKS

if TYPE_CHECKING:
    from histobench.mint.tasks.base import Task
    from histobench.mint.tools.base import Tool

TOOLS = "histobench.tools"


@functools.cache
def plugin_tools() -> dict[str, type[Tool]]:
    """Tool's name -> class, from the entry points `histobench.tools`."""
    from histobench.mint.tools.base import Tool

    found: dict[str, type[Tool]] = {}
    for entry, loaded in _loaded(TOOLS):
        if not (isinstance(loaded, type) and issubclass(loaded, Tool)):
            raise HistobenchError(f"entry point {entry!r} of {TOOLS} is no Tool class: {loaded!r}")
        if loaded.name in found:
            other = found[loaded.name].__module__
            raise HistobenchError(f"two tools are called {loaded.name!r}: in {other} and {loaded.__module__}")
        found[loaded.name] = loaded
    return found


@functools.cache
def plugin_tasks() -> dict[str, type[Task]]:
    """Dataset's name -> task class, from the entry points `histobench.tasks`."""
    from histobench.mint.tasks.base import Task

    found: dict[str, type[Task]] = {}
    for entry, loaded in _loaded(TASKS):
        if not (isinstance(loaded, type) and issubclass(loaded, Task)):
            raise HistobenchError(f"entry point {entry!r} of {TASKS} is no Task class: {loaded!r}")
        found[entry] = loaded
    return found


def get_plugin_tool(name: str) -> type[Tool]:
    """The tool class called `name`."""
    tools = plugin_tools()
    if name not in tools:
        raise HistobenchError(f"unknown tool {name!r}; {did_you_mean(name, tools)}")
    return tools[name]


def _loaded(group: str) -> list[tuple[str, Any]]:
    loaded = []
    for entry in entry_points(group=group):
        try:
            loaded.append((entry.name, entry.load()))
        except Exception as error:  # someone else's package: say whose, and go no further
            reason = f"{type(error).__name__}: {error}"
            raise HistobenchError(
                f"the plug-in {entry.name!r} ({entry.value}) cannot be loaded: {reason}"
            ) from error
    return loaded
