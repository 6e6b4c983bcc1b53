"""Runs a submission followed by its tests, once, in a process made for it."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from . import python38_language
from .alarm import soft_limit
from .capture import Capture


def run_program(order: dict[str, Any]) -> dict[str, Any]:
    """Execute `order["program"]` in empty globals; the token goes back only if it ran to its end.

    A program that leaves early, by any exception or by ending the process, never gets here with the token.
    """
    token = order.pop("token")
    program = order.pop("program")
    timeout, patience = order.pop("timeout"), order.pop("patience")
    try:
        with Capture(0), soft_limit(timeout, patience=patience):
            exec(_compiled(program, old=order["wording"] == "python3.8"), {})
    except BaseException as error:
        return {"token": None, "why": _one_line(error)}
    return {"token": token, "why": ""}


def _compiled(program: str, *, old: bool) -> CodeType:
    source: str | ast.Module = program
    if old:
        python38_language.use_old_library()
        source = python38_language.as_python38(ast.parse(program, "<submission>"))
    # dont_inherit: this file's own future statements are not the submission's.
    return compile(source, "<submission>", "exec", dont_inherit=True)


def _one_line(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}"[:500]
