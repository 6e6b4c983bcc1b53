"""The recorded expert's way through a game, read from its text."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from histobench.core.python_syntax import parse_python

_CELL = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_OBSERVATION = re.compile(r"\n\nObservation:\n(.*?)(?=\nAssistant:\n|\Z)", re.DOTALL)
#: The expert's notes name some actions differently from the tools.
NAMES = {"take": "take_from", "open": "open_receptacle", "close": "close_receptacle"}


@dataclass(frozen=True)
class Call:
    """One action: the tool's name and its arguments."""

    tool: str
    arguments: tuple[str, ...]


def expert_calls(trajectory: str) -> list[Call]:
    """The actions of an expert's trajectory, in order.

    >>> expert_calls('Assistant:\\n<execute>\\ntake("mug 1", "desk 1")\\n</execute>')
    [Call(tool='take_from', arguments=('mug 1', 'desk 1'))]
    """
    calls = []
    for cell in _CELL.findall(trajectory):
        for statement in parse_python(cell.strip()).body:
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                    words = tuple(str(ast.literal_eval(argument)) for argument in args)
                    calls.append(Call(NAMES.get(name, name), words))
    return calls


def expert_observations(trajectory: str) -> list[str]:
    """What the expert saw, one line for each action."""
    return [line for block in _OBSERVATION.findall(trajectory) for line in block.strip("\n").split("\n")]
