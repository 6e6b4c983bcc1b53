"""Tools that an agent can call from its code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from histobench.core.errors import HistobenchError
from histobench.mint.tools.base import Tool

__all__ = ["Tool", "check_unique_names", "get_toolset_description"]

HEADING = "Functions that you can call inside <execute> (already imported):"


def get_toolset_description(tools: Sequence[Tool]) -> str:
    """The part of the prompt that lists the tools; empty when there are none."""
    if not tools:
        return ""
    entries = [
        f"[{number}] {tool.signature}\n{tool.description}\n" for number, tool in enumerate(tools, start=1)
    ]
    return "\n".join([HEADING, *entries])


def check_unique_names(tools: Iterable[Tool | type[Tool]]) -> None:
    """Raise if two tools have one name: the second would silently hide the first."""
    seen: dict[str, str] = {}
    for tool in tools:
        kind = tool if isinstance(tool, type) else type(tool)
        place = f"{kind.__module__}.{kind.__qualname__}"
        if tool.name in seen:
            raise HistobenchError(f"two tools are called {tool.name!r}: {seen[tool.name]} and {place}")
        seen[tool.name] = place
