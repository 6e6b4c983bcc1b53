"""How an extraction looks: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from histobench.cli.terminal import open_terminal, say

if TYPE_CHECKING:
    from histobench.core.progress import Progress
    from histobench.roi.features.shard_plan import Extraction

#: Seconds between two lines where there is no terminal.
EVERY = 10.0


def display() -> Progress:
    """A bar for a terminal, lines for anything else; both go to standard error."""
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A rich progress bar with images per second and the time left."""

    def __init__(self) -> None:

        self._console = open_terminal(error=True)

    def begin(self, what: str, total: int) -> None:
        """Show a bar for `total` images, called `what`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(what, total=total, rate="")
        self._began = time.perf_counter()
        self._done = 0
        self._bar.start()

    def advance(self, count: int) -> None:
        """`count` more images are done: move the bar and show the rate since it began."""
        self._done += count
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._bar.update(self._task, advance=count, rate=f"{rate:.1f} images/s")

    def end(self) -> None:
        """Take the bar off the terminal."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text)


class Lines:
    """A line at the start, one every ten seconds, and one at the end."""

    def begin(self, what: str, total: int) -> None:
        """Say what is to be done."""
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.perf_counter()
        self._first: tuple[float, int] | None = None
        self.say(f"{what}: {total} images")

    def advance(self, count: int) -> None:
        """Say how far it is, if that was long ago."""
        self._done += count
        now = time.perf_counter()
        # The first batch also starts workers, compiles and warms up: it says nothing about the others.
        began, before = self._first = self._first or (now, self._done)
        if now - self._last >= EVERY and self._done > before:
            self._last = now
            rate = (self._done - before) / (now - began)
            left = (self._total - self._done) / rate
            self.say(
                f"{self._what}: {self._done}/{self._total} images, {rate:.1f} images/s, {left:.0f} s left"
            )

    def end(self) -> None:
        """Say how long it took."""
        seconds = time.perf_counter() - self._began
        rate = self._done / max(seconds, 1e-9)
        self.say(f"{self._what}: {self._done} images in {seconds:.1f} s, {rate:.1f} images/s")

    def say(self, text: str) -> None:
        """A line."""
        say(text, error=True)


def print_extractions(extractions: Sequence[Extraction]) -> None:
    """The files that were written, one per line, and what was left out."""
    for item in extractions:
        source = "all from the cache" if not item.computed else f"{item.computed} computed"
        say(f"{item.path}  ({item.images} images, {source})")
    for name, reason in dict.fromkeys(pair for item in extractions for pair in item.skipped):
        say(f"left out: {name}: {reason}")
