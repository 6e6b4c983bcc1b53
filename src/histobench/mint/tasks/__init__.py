"""Tasks: a prompt, a reference and a checker; the eight datasets of the benchmark.

A class in any module of this folder is found by its name alone, as the published guide has it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

#: Where each class lies; looked up on first use, so that importing the package stays cheap.
_CLASSES = {
    "Task": "base",
    "ReasoningTask": "reasoning",
    "MultipleChoiceTask": "reasoning",
    "TheoremqaTask": "reasoning",
    "CodeGenTask": "codegen",
    "HumanEvalTask": "codegen",
    "MBPPTask": "codegen",
    "AlfWorldTask": "alfworld",
}
__all__ = list(_CLASSES)


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
    if name[:1].isupper():  # a class that someone put here
        for module in pkgutil.iter_modules(__path__):
            found = getattr(importlib.import_module(f"{__name__}.{module.name}"), name, None)
            if isinstance(found, type):
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
