"""Tasks: a prompt, a reference and a checker; the eight datasets of the benchmark."""

from __future__ import annotations

import importlib
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
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
