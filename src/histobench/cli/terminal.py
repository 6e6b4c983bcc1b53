"""The one door to the terminal: whatever is printed passes here, and nothing in it is obeyed.

No other file prints or opens a console. Text is text: brackets are no markup, words between colons no
pictures, and control characters are written out. Colour is given as a style, never inside a string.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from histobench.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# What the rooms below call a parameter, the command line calls a flag: `group_regex` is --group-regex.

_NAMED = re.compile(r"`(\w+)`")


def in_flags(text: str) -> str:
    """The text as the command that runs would say it."""
    return _running.translate(text)


def speak_as(parser: argparse.ArgumentParser) -> None:
    """From now on parameters are called as this command calls them."""
    global _running
    _running = FlagNames(parser)


class FlagNames:
    """The flags of one command, by the names of their parameters."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._flags: dict[str, str] = {}
        self._learn(parser)

    def translate(self, text: str) -> str:
        """The text with parameters that the command has as flags in the spelling of the command line.

        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("-g", "--group-regex")
        >>> FlagNames(parser).translate("`group_regex` finds no group; leave out `split`")
        '--group-regex finds no group; leave out `split`'
        """
        return _NAMED.sub(lambda match: self._flags.get(match[1], match[0]), text)

    def _learn(self, parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for job in action.choices.values():
                    self._learn(job)
            long = [flag for flag in action.option_strings if flag.startswith("--")]
            if long:
                self._flags.setdefault(action.dest, long[0])
                # A flag keeps its own name where the value is stored under another one.
                self._flags.setdefault(long[0][2:].replace("-", "_"), long[0])


#: One process runs one command.
_running = FlagNames(argparse.ArgumentParser())


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


# Where tables with many columns are printed.

WIDTH = 140


def whole_lines() -> Console:
    """Standard output; in a file or a pipe, which have no width, lines are not broken at 80 characters."""

    console = open_terminal()
    return console if console.is_terminal else open_terminal(width=WIDTH)
