"""The one door to the terminal: whatever is printed passes here, and nothing in it is obeyed.

No other file prints or opens a console. Text is text: brackets are no markup, words between colons no
pictures, and control characters are written out. Colour is given as a style, never inside a string.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from histobench.cli.flag_names import in_flags
from histobench.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def say(text: object = "", *, error: bool = False, end: str = "\n") -> None:
    """A line on standard output, or on standard error."""
    print(shown(text), file=sys.stderr if error else sys.stdout, end=end, flush=error)


def open_terminal(*, error: bool = False, width: int | None = None, soft_wrap: bool = False) -> Console:
    """A console for tables, styles and progress, on standard output or standard error."""
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        """Writes out control characters in whatever is rendered, down to the cells of tables."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=shown(segment.text))

    return Terminal(
        stderr=error, width=width, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False
    )


def labelled(label: str, style: str, text: object) -> Text:
    """A word in colour and what it is about."""
    from rich.text import Text

    return Text.assemble((label, style), in_flags(f" {text}"))
