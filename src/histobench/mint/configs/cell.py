"""One cell of the experiment matrix, and the folder name that the published benchmark gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from histobench.core.errors import HistobenchError

NONE = "None"
#: The ways in which a model acts: tags in its text as published, or its provider's function calls.
CALLS = ("text", "native")
_PATH = re.compile(
    r"(?:.*/)?([^/]+)/F=([^/]+)(?:/PHF=([^/]*))?/max(\d+)_p(\d+)(\+tool)?(\+cd)?(\+native)?/([^/]+)/([^/]+)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Cell:
    """A model, an expert (or none), a budget and a dataset.

    >>> Cell("gpt", "reasoning", "gsm8k", max_steps=3).path
    'gpt/F=None/max3_p2+tool+cd/reasoning/gsm8k'
    """

    model: str
    family: str
    dataset: str
    feedback_model: str = NONE
    feedback_type: str = NONE  # <gt>-<form>, such as no_GT-textual
    max_steps: int = 5
    max_propose_solution: int = 2
    use_tools: bool = True
    count_down: bool = True
    calls: str = "text"

    @property
    def agent(self) -> str:
        """Who plays, in tables: a model with native calls is another agent than the same with text.

        >>> Cell("gpt", "reasoning", "gsm8k", calls="native").agent
        'gpt+native'
        """
        return self.model if self.calls == "text" else f"{self.model}+{self.calls}"

    @property
    def path(self) -> str:
        parts = [self.model, f"F={self.feedback_model}"]
        if self.feedback_model != NONE:
            parts.append(f"PHF={self.feedback_type}")
        setting = f"max{self.max_steps}_p{self.max_propose_solution}"
        setting += "+tool" * self.use_tools + "+cd" * self.count_down
        setting += "" if self.calls == "text" else f"+{self.calls}"
        return "/".join([*parts, setting, self.family, self.dataset])

    @property
    def env_config(self) -> dict[str, Any]:
        return {
            "max_steps": self.max_steps,
            "use_tools": self.use_tools,
            "max_propose_solution": self.max_propose_solution,
            "count_down": self.count_down,
        }


def check_model_name(name: str) -> str:
    """The name, if a folder can be called by it and read back."""
    if not name.strip() or name in (".", "..") or "/" in name or name.startswith("F="):
        raise HistobenchError(f"{name!r} cannot be the name of a folder of results; give another `name`")
    return name


def parse_cell(path: str | PurePosixPath) -> Cell:
    """The cell that the end of a path names; what stands before the model is ignored.

    >>> parse_cell("out/gpt/F=gpt-4/PHF=GT-binary/max5_p2+tool+cd/reasoning/math").feedback_type
    'GT-binary'
    """
    match = _PATH.fullmatch(str(PurePosixPath(path)))
    if match is None:
        raise HistobenchError(
            f"{path} is not the folder of a run; expected "
            "<model>/F=<expert>[/PHF=<type>]/max<k>_p<p>[+tool][+cd][+native]/<family>/<dataset>"
        )
    model, expert, feedback_type, steps, proposals, tools, down, native, family, dataset = match.groups()
    return Cell(
        model=model,
        family=family,
        dataset=dataset,
        feedback_model=expert,
        feedback_type=feedback_type or NONE,
        max_steps=int(steps),
        max_propose_solution=int(proposals),
        use_tools=bool(tools),
        count_down=bool(down),
        calls="native" if native else "text",
    )
