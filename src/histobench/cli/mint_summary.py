"""What a run has come to: success of each cell, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.mint_progress import cost_text, duration
from histobench.cli.terminal import labelled
from histobench.cli.whole_lines import whole_lines

#: Exit code of a run of agents that has episodes left to play.
INCOMPLETE = 1

if TYPE_CHECKING:
    from histobench.mint.configs.cell import Cell
    from histobench.mint.runs.run import RunOutcome


def print_summary(output: Path, cells: Sequence[Cell], outcome: RunOutcome) -> None:
    """A line for each cell, then what is missing and how to go on."""
    from rich.table import Table

    from histobench.mint.configs.cell import NONE
    from histobench.mint.results.episode_summary import summarise_cell

    console = whole_lines()
    table = Table(box=None, pad_edge=False)
    for title in ("model", "feedback", "dataset"):
        table.add_column(title)
    for title in ("k", "episodes", "success", "95 % interval", "turns", "invalid", "tokens"):
        table.add_column(title, justify="right")
    for cell in cells:
        summary = summarise_cell(output, cell)
        if summary is None:
            continue
        interval = summary.interval
        feedback = "" if cell.feedback_model == NONE else f"{cell.feedback_model} {cell.feedback_type}"
        table.add_row(
            cell.model,
            feedback,
            cell.dataset,
            str(cell.max_steps),
            str(summary.episodes),
            f"{summary.success_rate:.1f} %",
            "" if interval.low is None else f"{100 * interval.low:.1f} - {100 * (interval.high or 0):.1f}",
            f"{summary.turns:.1f}",
            f"{summary.invalid:.2f}",
            "" if summary.tokens is None else f"{summary.tokens:,.0f}",
        )
    console.print(table)
    standing = outcome.standing
    new = standing.done - standing.earlier
    line = f"{standing.done} of {standing.total} episodes in {output}"
    if new:
        line += f"; {new} new in {duration(standing.seconds)}, {standing.tokens:,} tokens"
    if standing.spent or standing.unpriced:
        line += f", {cost_text(standing)}"
    console.print(line, soft_wrap=True)
    if outcome.repaired:
        console.print(f"{outcome.repaired} torn lines of a killed run were removed")
    for problem in outcome.problems:
        console.print(labelled("not the model's failure:", "yellow", problem), soft_wrap=True)
    if outcome.stopped:
        console.print(labelled("stopped:", "yellow", outcome.stopped), soft_wrap=True)
    if not outcome.complete:
        missing = standing.total - standing.done
        console.print(f"{missing} episodes are missing; run the same command to go on")
