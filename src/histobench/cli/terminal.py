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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from histobench.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn
    from rich.table import Table
    from rich.text import Text

    from histobench.roi.plan.plan_outcome import Overview, OverviewCell, OverviewColumn


# Messages name parameters; the command line shows them as flags: `group_regex` is --group-regex.

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
    """Spell parameters as the flags of this command from now on."""
    _flags.clear()
    _learn(parser)


def _learn(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for job in action.choices.values():
                _learn(job)
        long = [flag for flag in action.option_strings if flag.startswith("--")]
        if long:
            _flags.setdefault(action.dest, long[0])
            # A flag keeps its own name where the value is stored under another one.
            _flags.setdefault(long[0][2:].replace("-", "_"), long[0])


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


def count_of(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count_of(1, "task"), count_of(2, "class"), count_of(1200, "image"), count_of(2, "entry")
    ('1 task', '2 classes', '1,200 images', '2 entries')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def with_bounds(value: float | None, low: float | None, high: float | None) -> str:
    """A value with the bounds of its interval, where it has some.

    >>> with_bounds(0.95, 0.9, 0.98), with_bounds(0.95, None, None), with_bounds(None, None, None)
    ('0.950 [0.900, 0.980]', '0.950', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def labelled(label: str, style: str, text: object) -> Text:
    """A word in colour and what it is about."""
    from rich.text import Text

    return Text.assemble((label, style), in_flags(f" {text}"))


# Tables as wide as the terminal, and what is shown while something takes long.

#: Characters of a line in a file or a pipe, which have no width.
WIDTH = 140
#: Seconds after which a command says what it is doing.
PATIENCE = 2.0


def width_of_output() -> int | None:
    """Characters of a line: what COLUMNS says, else the terminal's; None for a file or a pipe."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def whole_lines() -> Console:
    """Standard output; in a file or a pipe without a width lines are not broken at 80 characters."""
    return open_terminal(width=width_of_output() or WIDTH)


def print_columns(
    rows: Sequence[Mapping[str, str]], *, right: Sequence[str] = (), drop: Sequence[str] = ()
) -> list[str]:
    """Print rows below their headings; returns the columns of `drop` that were left out to fit the width.

    Columns are left out in the order of `drop`; if that is not enough, the last column is cut.
    """
    from rich.cells import cell_len, set_cell_size

    width = width_of_output()
    columns = list(rows[0]) if rows else []
    texts = [{column: shown(row[column]) for column in columns} for row in rows]
    wide = {column: max(map(cell_len, (column, *(row[column] for row in texts)))) for column in columns}
    dropped: list[str] = []
    for column in drop:
        if width is None or sum(wide[each] + 2 for each in columns) - 2 <= width:
            break
        columns.remove(column)
        dropped.append(column)
    for row in ({column: column for column in columns}, *texts):
        cells = []
        for column in columns:
            space = " " * (wide[column] - cell_len(row[column]))
            cells.append(space + row[column] if column in right else row[column] + space)
        line = "  ".join(cells).rstrip()
        if width is not None and cell_len(line) > width:
            line = set_cell_size(line, width - 3) + "..."
        say(line)
    return dropped


def plain_table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table without lines: columns of texts, then columns of numbers, aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in texts:
        table.add_column(title)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def parts_that_fit(wide: Sequence[int], width: int, *, lead: int = 1, gap: int = 2) -> list[list[int]]:
    """The columns of each of the tables that a table is printed as, for columns that are `wide`.

    The first `lead` columns are in each of them; `gap` is between two columns.

    >>> parts_that_fit([3, 40, 40], 100), parts_that_fit([3, 40, 40], 80)
    ([[0, 1, 2]], [[0, 1], [0, 2]])
    """
    parts = [list(range(lead))]
    for place in range(lead, len(wide)):
        used = sum(wide[k] + gap for k in (*parts[-1], place)) - gap
        if used > width and len(parts[-1]) > lead:
            parts.append(list(range(lead)))
        parts[-1].append(place)
    return parts


def print_in_parts(table: Table, console: Console, *, lead: int = 1) -> None:
    """Print a table; columns that do not fit follow below, after the first `lead` columns again.

    Columns without any text are left out.
    """
    from rich.cells import cell_len
    from rich.table import Table

    texts = [[str(cell) for cell in column.cells] for column in table.columns]
    wide = [
        max(map(cell_len, (str(column.header), *cells)))
        for column, cells in zip(table.columns, texts, strict=True)
    ]
    shown = [place for place in range(len(wide)) if place < lead or any(texts[place])]
    parts = parts_that_fit([wide[place] for place in shown], console.width, lead=lead)
    for part in parts:
        places = [shown[place] for place in part]
        view = Table(box=None, pad_edge=False)
        for place in places:
            view.add_column(table.columns[place].header, justify=table.columns[place].justify)
        for row in zip(*(texts[place] for place in places), strict=True):
            view.add_row(*row)
        console.print(view)


# Encoders x tasks in as many columns as the terminal has.

_GAP = 1


def print_overview(overview: Overview, console: Console, *, what: str = "encoder") -> None:
    """Print encoders as rows and tasks as columns; columns that do not fit follow in a further table."""
    from rich.table import Table
    from rich.text import Text

    groups = overview.n_groups
    counted = f": {overview.n_images:,} test images" if overview.n_images else ""
    counted += f" of {groups:,} groups (patients, slides)" if counted and groups is not None else ""
    console.print(Text.assemble((overview.dataset or "results", "bold"), counted), soft_wrap=True)
    costs = overview.costs
    for number, (columns, long) in enumerate(_blocks(overview, console.width)):
        speed = "params, speed" if costs and number == 0 else ""
        details = any(column.detail for column in columns) or (speed and not long)
        second = "\n" if details else ""
        view = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        view.add_column(f"{what}{second}{'' if long else speed}", no_wrap=True)
        for column in columns:
            view.add_column(f"{column.task}{second}{column.detail}", no_wrap=True)
        if long and speed:
            view.add_column(f"{speed}{second}", no_wrap=True)
        for name in overview.encoders:
            cost = costs.get(name, "") if speed else ""
            cells = [_cell_text(column.cells.get(name), long=long) for column in columns]
            lead = Text(name) if long else Text.assemble(name, "\n", (cost, "dim"))
            view.add_row(lead, *cells, *([Text(cost)] if long and speed else []))
        console.print(view)
    console.print()


def print_answer(text: str, console: Console) -> None:
    """Print which encoders may be the best."""
    console.print(f"Answer: {text}", style="bold")


def _blocks(overview: Overview, width: int) -> list[tuple[list[OverviewColumn], bool]]:
    """The columns of each table, and whether value and interval of a cell are on one line."""
    names = max(map(len, (*overview.encoders, "encoder")))
    costs = max(map(len, ("params, speed", *overview.costs.values()))) if overview.costs else 0

    def wide(column: OverviewColumn, *, long: bool) -> int:
        cells = [_cell_text(column.cells.get(name), long=long).plain for name in overview.encoders]
        lines = [line for cell in cells for line in cell.split("\n")]
        return _GAP + max(map(len, (column.task, column.detail, *lines)))

    def fits(columns: Sequence[OverviewColumn], *, long: bool) -> bool:
        lead = names + (costs and costs + _GAP) if long else max(names, costs)
        return lead + sum(wide(column, long=long) for column in columns) <= width

    if fits(overview.columns, long=True):
        return [(list(overview.columns), True)]
    widths = [max(names, costs), *(wide(column, long=False) for column in overview.columns)]
    blocks = [[overview.columns[k - 1] for k in part[1:]] for part in parts_that_fit(widths, width, gap=0)]
    return [(block, fits(block, long=True)) for block in blocks]


def _cell_text(cell: OverviewCell | None, *, long: bool) -> Text:
    """`0.951* [0.932, 0.968]`, or on two lines `0.951*` and `[.932,.968]`."""
    from rich.text import Text

    if cell is None or cell.value is None:
        return Text("-")
    value = f"{cell.value:.3f}{cell.mark}"
    style = "bold" if cell.mark else ""  # a mark needs a test
    if cell.low is None or cell.high is None:
        return Text(value, style=style)
    if long:
        return Text.assemble((value, style), f" [{cell.low:.3f}, {cell.high:.3f}]")
    low, high = (f"{bound:.3f}".replace("0.", ".", 1) for bound in (cell.low, cell.high))
    return Text.assemble((value, style), "\n", (f"[{low},{high}]", "dim"))


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
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Show it, or show it again."""
        if self._status is not None:
            self._status.start()
        else:
            self._watch()

    def stop(self) -> None:
        """Show nothing."""
        if self._status is not None:
            self._status.stop()
        if self._timer is not None:
            self._timer.cancel()

    def update(self, text: str) -> None:
        """Something else is being done now."""
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
        self._timer = threading.Timer(PATIENCE, say, (f"{self._text} ...",), {"error": True})
        self._timer.daemon = True
        self._timer.start()


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text)
