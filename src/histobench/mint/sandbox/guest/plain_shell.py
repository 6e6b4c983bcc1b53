"""A shell for where IPython is not loaded: plain exec, plain tracebacks."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from typing import Any

from .cell_limits import memory_limit, soft_limit


class PlainShell:
    """Runs cells in one namespace and prints the value of a last expression."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._cell = 1

    def start(self, names: dict[str, Any], first_cell_number: int) -> None:
        self._names = {"__name__": "__main__", **names}
        self._cell = first_cell_number

    def run(self, code: str, timeout: float, patience: float) -> str:
        name = f"Cell In[{self._cell}]"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            with soft_limit(timeout, patience=patience) as timed_out:
                self._execute(code, name)
        except BaseException as error:
            depth = 0 if isinstance(error, SyntaxError) else None
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            with memory_limit(None):
                lines = traceback.format_exception(type(error), error, trace, limit=depth)
                sys.stdout.write("".join(lines))
            return "timeout" if timed_out(error) else "error"
        finally:
            self._cell += 1
        return "ok"

    def _execute(self, code: str, name: str) -> None:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), self._names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), self._names)
            if value is not None:
                sys.stdout.write(f"Out[{self._cell}]: {value!r}\n")
