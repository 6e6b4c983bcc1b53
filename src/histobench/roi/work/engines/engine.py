"""What an engine is: something that gets the units of a run done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from histobench.core.progress import Progress, Silent
from histobench.roi.work.run_folder import RunFolder


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Display:
    """Who is told what is going on; the two hooks make room for the bar of an extraction."""

    progress: Progress = field(default_factory=Silent)
    say: Callable[[str], None] = lambda text: None
    before_extraction: Callable[[], None] = _nothing
    after_extraction: Callable[[], None] = _nothing


class Engine(Protocol):
    """Gets units done, here or elsewhere; what was done is seen from their outputs alone."""

    @property
    def name(self) -> str:
        """As it is asked for."""

    @property
    def whole(self) -> bool:
        """Whether one process computes the features of a dataset in one go."""

    def check(self) -> None:
        """Raise when there is nothing to run on, before anything is written."""

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Get every unit done; False where that goes on after this call, in jobs of their own."""
