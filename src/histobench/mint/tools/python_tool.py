"""The Python session an agent works in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from histobench.mint.sandbox import CellResult, CodeSession, SandboxPool, shared_pool
from histobench.mint.tools.base import Tool

NO_OUTPUT = "[Executed Successfully with No Output]"
TRUNCATED = "...\n[Output Truncated]"
MAX_CHARS = 2000


class PythonREPL(Tool):
    """Runs each query as one IPython cell in a sandboxed session that lasts until `reset`."""

    name = "python"
    signature = "python(code: str) -> str"
    description = "Runs Python code in a session that keeps its variables; returns what the code printed."

    def __init__(
        self,
        user_ns: Mapping[str, Callable[..., Any]] | None = None,
        timeout: float = 30.0,
        *,
        pool: SandboxPool | None = None,
    ) -> None:
        self._tools = dict(user_ns or {})
        self._timeout = timeout
        self._pool = pool
        self._session: CodeSession | None = None
        self.last_result: CellResult | None = None

    def __call__(self, query: str) -> str:
        if self._session is None:
            self._session = (self._pool or shared_pool()).episode(self._tools)
        self.last_result = self._session.run_cell(query, self._timeout)
        return as_observation(self.last_result.text)

    def reset(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        self.reset()


def as_observation(text: str) -> str:
    """What the agent gets to see of a cell's output.

    >>> as_observation("")
    '[Executed Successfully with No Output]'
    >>> len(as_observation("x" * 5000))
    2022
    """
    if not text:
        return NO_OUTPUT
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + TRUNCATED
