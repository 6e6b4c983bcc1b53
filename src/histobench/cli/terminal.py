"""Everything that is printed passes through this module, as plain text.

No other file prints or opens a console. Brackets are not markup, words between colons are not emoji, and
control characters are escaped. Color is given as a style, never inside a string.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from histobench.core.records import flags_of
from histobench.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn
    from rich.text import Text

    from histobench.roi.comparison.grids import Grid
    from histobench.roi.plan.plan_outcome import Overview, OverviewCell


_NAMED = re.compile(r"`(\w+)`")
#: The flags of the running command, by the names of their parameters: one process runs one command.
_flags: dict[str, str] = {}


def in_flags(text: str) -> str:
    """The text with parameters that the running command has as flags in the spelling of the command line.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("-g", "--group-regex")
    >>> speak_as(parser)
    >>> in_flags("`group_regex` finds no group; leave out `split`")
    '--group-regex finds no group; leave out `split`'
    """
    return _NAMED.sub(lambda match: _flags.get(match[1], match[0]), text)


def speak_as(parser: argparse.ArgumentParser) -> None:
    _flags.clear()
    for flag, action in flags_of(parser):
        if flag.startswith("--") and flag in action.option_strings:
            _flags.setdefault(action.dest, flag)
            # A flag keeps its own name where the value is stored under another one.
            _flags.setdefault(flag[2:].replace("-", "_"), flag)


def say(text: object = "", *, error: bool = False, end: str = "\n") -> None:
    """A line on standard output, or on standard error."""
    print(shown(text), file=sys.stderr if error else sys.stdout, end=end, flush=error)


def open_terminal(*, error: bool = False) -> Console:
    """A console for tables, styles and progress, on standard output or standard error.

    Lines are not broken: a path can be copied. Tables fit the width.
    """
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class Terminal(Console):
        """Writes out control characters in whatever is rendered, down to the cells of tables."""

        def print(self, *objects: Any, **options: Any) -> None:
            is_text = all(isinstance(each, str | Text) for each in objects)
            super().print(*objects, **{"soft_wrap": is_text, **options})

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=shown(segment.text))

    width = None if error else width_of_output()
    return Terminal(stderr=error, width=width, markup=False, emoji=False, highlight=False)


def with_bounds(value: float | None, low: float | None, high: float | None, *, mark: str = "") -> str:
    """A value with its mark and the bounds of its interval, where it has some.

    >>> with_bounds(0.95, 0.9, 0.98), with_bounds(0.95, None, None), with_bounds(None, None, None)
    ('0.950 [0.900, 0.980]', '0.950', '-')
    """
    if value is None:
        return "-"
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{value:.3f}{mark}{interval}"


def labelled(label: str, style: str, text: object) -> Text:
    from rich.text import Text

    return Text.assemble((label, style), in_flags(f" {text}"))


#: Characters of a line in a file or a pipe, which have no width: lines stay whole.
WIDTH = 2000
#: Seconds after which a command says what it is doing.
PATIENCE = 2.0
#: The zero of a bound such as 0.95, which narrow tables leave out.
_ZERO = re.compile(r"(?<=[\[, -])0(?=\.\d)")
_NUMBER = re.compile(r"[-+<>(\[]*\.?\d.*|[-?]?", re.DOTALL)
_LEAST_NAME = 8


def width_of_output() -> int:
    """Characters of a line: what COLUMNS says, else the terminal's; many for a file or a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def print_table(
    rows: Sequence[Mapping[str, str]],
    console: Console | None = None,
    *,
    title: str = "",
    lead: int = 1,
    below: str = "",
    drop: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print rows below their headings within the width of the terminal, and notes below them.

    Columns without any text are left out. A table that is too wide shortens its intervals, then puts them on
    a second line, and the column `below` under the first one; then it leaves out columns of `drop` and names
    them; columns that still do not fit follow below, after the first `lead` columns again.
    """
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.table import Table

    console = console or open_terminal()
    if not rows:
        return
    if title:
        console.print(title, style="bold")
    names = list(dict.fromkeys(name for row in rows for name in row))
    found = {name: [shown(row.get(name, "")) for row in rows] for name in names}
    found = {name: cells for place, (name, cells) in enumerate(found.items()) if place < lead or any(cells)}
    for form, gap in (("whole", 2), ("short", 2), ("short", 1), ("stacked", 1)):
        if form == "stacked" and below in found:
            under, (first, top) = found.pop(below), next(iter(found.items()))
            joined = [f"{text}\n{more}".strip() for text, more in zip(top, under, strict=True)]
            found = {f"{first}\n{below}": joined} | {k: v for k, v in found.items() if k != first}
        columns = [
            [text if place < lead else _in_form(text, form) for text in (name, *cells)]
            for place, (name, cells) in enumerate(found.items())
        ]
        if form == "stacked" and not any("\n" in text for _, *cells in columns for text in cells):
            gap = 2
        wide = [max(cell_len(line) for text in column for line in text.split("\n")) for column in columns]
        if sum(wide) + gap * (len(wide) - 1) <= console.width:
            break
    dropped: list[str] = []
    kept = list(range(len(columns)))
    for name in drop:
        if sum(wide[place] + gap for place in kept) - gap > console.width:
            kept.remove(list(found).index(name))
            dropped.append(name)
    for part in parts_that_fit(wide, console.width, places=kept, lead=lead, gap=gap):
        view = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for place in part:
            number = place >= lead and all(map(_NUMBER.fullmatch, columns[place][1:]))
            view.add_column(
                columns[place][0],
                justify="right" if number else "left",
                no_wrap=place >= lead,
                overflow="fold",
            )
        for row in range(len(rows)):
            view.add_row(*(_styled(columns[place][row + 1]) for place in part))
        console.print(view)
    if dropped:
        console.print(f"Not shown at this width: {', '.join(dropped)}.")
    for note in notes:
        console.print(Padding(note, (0, 0, 0, 2), expand=False))


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table that files show, too, with its notes."""
    rows = [dict(zip(grid.header, row, strict=True)) for row in grid.rows]
    lead = 1 + (grid.header.index("encoder") if "encoder" in grid.header else 0)
    print_table(rows, console, title=grid.title, lead=lead, notes=grid.notes)
    console.print()


def parts_that_fit(
    wide: Sequence[int], width: int, *, places: Sequence[int], lead: int = 1, gap: int = 2
) -> list[list[int]]:
    """The columns of each block that a table is printed as, for columns that are `wide`.

    >>> parts_that_fit([3, 40, 40], 100, places=[0, 1, 2]), parts_that_fit([3, 40, 40], 80, places=[0, 1, 2])
    ([[0, 1, 2]], [[0, 1], [0, 2]])
    """
    first, others = list(places[:lead]), places[lead:]
    widest = max((wide[place] for place in others), default=0)
    # Names are folded only where no number could stand beside them.
    names = min(sum(wide[k] + gap for k in first), max(width - widest, _LEAST_NAME))
    parts = [list(first)]
    for place in others:
        used = names + sum(wide[k] + gap for k in (*parts[-1][lead:], place)) - gap
        if used > width and len(parts[-1]) > lead:
            parts.append(list(first))
        parts[-1].append(place)
    return parts


def _in_form(text: str, form: str) -> str:
    """A cell or heading with its interval.

    >>> [_in_form("0.951* [0.932, 0.968]", form) for form in ("whole", "short", "stacked")]
    ['0.951* [0.932, 0.968]', '0.951* [.932,.968]', '0.951*\\n[.932,.968]']
    """
    value, bracket, interval = text.partition(" [")
    if form == "whole" or not bracket:
        return text
    between = "\n" if form == "stacked" or not _NUMBER.fullmatch(value) else " "
    return value + between + _ZERO.sub("", f"[{interval}").replace(", ", ",")


def _styled(cell: str) -> Text:
    from rich.text import Text

    value, _, below = cell.partition("\n")
    marked = value.partition(" ")[0].endswith("*")
    return Text.assemble((value, "bold" if marked else ""), ("\n" + below if below else "", "dim"))


def print_overview(overview: Overview, console: Console) -> None:
    groups = overview.n_groups
    counted = f": {overview.n_images:,} test images" if overview.n_images else ""
    counted += f" of {groups:,} groups (patients, slides)" if counted and groups is not None else ""
    rows = [
        {
            "encoder": name,
            **{
                f"{column.task}\n{column.detail}".strip(): _value(column.cells.get(name))
                for column in overview.columns
            },
            "params, speed": overview.costs.get(name, ""),
        }
        for name in overview.encoders
    ]
    title = f"{overview.dataset or 'results'}{counted}"
    print_table(rows, console, title=title, below="params, speed")
    console.print()


def _value(cell: OverviewCell | None) -> str:
    return "-" if cell is None else with_bounds(cell.value, cell.low, cell.high, mark=cell.mark)


def print_answer(text: str, console: Console) -> None:
    lines = textwrap.wrap(f"Answer: {text}", console.width, break_long_words=False, break_on_hyphens=False)
    console.print("\n".join(lines), style="bold")


@contextmanager
def bars(console: Console, *columns: ProgressColumn) -> Iterator[Callable[[str, int, int | None], None]]:
    """A function that shows how far something is, in a bar for each name that it is called with."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    name = TextColumn("{task.description}", markup=False)
    tasks: dict[str, TaskID] = {}
    hidden = not console.is_terminal
    with Progress(name, BarColumn(), *columns, console=console, transient=True, disable=hidden) as progress:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, total=total)

        yield show


class Busy:
    """Shows what is being done: a spinner on a terminal; elsewhere a line once it has taken a while."""

    def __init__(self, text: str) -> None:
        console = open_terminal(error=True)
        self._status = console.status(_plain(text)) if console.is_terminal else None
        self._text = text
        self._printed = ""
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        if self._status is not None:
            self._status.start()
        else:
            self._watch()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
        if self._timer is not None:
            self._timer.cancel()

    def update(self, text: str) -> None:
        self._text = text
        if self._status is not None:
            self._status.update(_plain(text))
        else:
            self._watch()

    def __enter__(self) -> Busy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(PATIENCE, self._print)
        self._timer.daemon = True
        self._timer.start()

    def _print(self) -> None:
        if self._text != self._printed:
            say(f"{self._text} ...", error=True)
        self._printed = self._text


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text)
