"""Where tables with many columns are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histobench.cli.terminal import open_terminal

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140


def whole_lines() -> Console:
    """Standard output; in a file or a pipe, which have no width, lines are not broken at 80 characters."""

    console = open_terminal()
    return console if console.is_terminal else open_terminal(width=WIDTH)
