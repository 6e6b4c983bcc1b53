"""A line that says how a run is going."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.mint.runs.episode_counter import EpisodeCounter, Standing

#: Where there is no terminal, a line is printed about this often.
PRINT_EVERY_S = 30.0


@contextmanager
def progress_display(console: Console, counter: EpisodeCounter) -> Iterator[Callable[[Standing], None]]:
    """A bar in a terminal, a line from time to time elsewhere; yields what shows a new standing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    first = counter.standing()
    if first.earlier:
        console.print(f"{first.earlier} of {first.total} episodes are on disk already")
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(described(first), total=first.total, completed=first.done)

        def show(standing: Standing) -> None:
            progress.update(bar, completed=standing.done + standing.failures, description=described(standing))

        yield show


def described(standing: Standing) -> str:
    """Success so far, tokens, cost, time left."""
    rate = standing.success_rate
    parts = ["no success yet" if rate is None else f"success {rate:.1f} %", f"{standing.tokens:,} tokens"]
    if standing.spent:  # what has no price is said once, at the end
        parts.append(f"${standing.spent:.4f}")
    if standing.failures:
        parts.append(f"{standing.failures} to repeat")
    if standing.seconds_left is not None:
        parts.append(f"{duration(standing.seconds_left)} left")
    return " · ".join(parts)


def cost_text(standing: Standing) -> str:
    """Dollars, and what is not known about them."""
    text = f"${standing.spent:.4f}"
    return f"{text} + {standing.unpriced} answers of unknown price" if standing.unpriced else text


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as far as they matter.

    >>> duration(3725), duration(65), duration(4.2)
    ('1 h 02 min', '1 min 05 s', '4 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _line_printer(console: Console) -> Callable[[Standing], None]:
    last = time.monotonic()

    def show(standing: Standing) -> None:
        nonlocal last
        if time.monotonic() - last >= PRINT_EVERY_S:
            last = time.monotonic()
            text = f"{standing.done} of {standing.total} · {described(standing)}"
            console.print(text, soft_wrap=True)

    return show
