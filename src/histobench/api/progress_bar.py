"""Progress for Python users: a bar of the notebook's kind in a notebook, of the terminal's kind elsewhere."""

from __future__ import annotations

import logging
from typing import Any

from histobench.core.progress import Progress

log = logging.getLogger("histobench")


class ProgressBar(Progress):
    """A tqdm bar that counts images; lines that matter go to the logger `histobench`."""

    def begin(self, what: str, total: int) -> None:
        """Show a bar for `total` images."""
        from tqdm.auto import tqdm

        self._bar: Any = tqdm(total=total, desc=what, unit="image")

    def advance(self, count: int) -> None:
        """Move the bar by `count` images."""
        self._bar.update(count)

    def end(self) -> None:
        self._bar.close()

    def say(self, text: str) -> None:
        """Log a line that the user should see."""
        log.warning("%s", text)
