"""The leaderboard: success for every budget k, improvement per turn, gain from an expert's feedback.

Takes any mix of outcome tables (.csv, .csv.gz) and folders of finished runs (results.jsonl in the published
folders).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from histobench.mint.results.leaderboard import Standing
    from histobench.mint.results.outcome import EpisodeOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to tabulate."""
    parser.add_argument("results", nargs="+", help="outcome tables or folders of runs")
    parser.add_argument("--feedback-model", default="gpt-4-0613", help="expert of the feedback column")
    parser.add_argument("--feedback-type", default="no_GT-textual", help="its kind of feedback")
    parser.add_argument("--json", help="also write the table to this file, in the published shape")


def run(args: argparse.Namespace) -> None:
    """Print the table, best first."""
    from histobench.core.atomic import write_json
    from histobench.mint.results.leaderboard import leaderboard

    outcomes = (outcome for path in args.results for outcome in _outcomes(Path(path)))
    standings = leaderboard(outcomes, feedback_model=args.feedback_model, feedback_type=args.feedback_type)
    standings.sort(key=lambda standing: -standing.rates.get(5, max(standing.rates.values(), default=0.0)))
    _print(standings)
    if args.json:
        write_json(args.json, {standing.model: standing.as_published() for standing in standings})


def _outcomes(path: Path) -> Iterator[EpisodeOutcome]:
    from histobench.mint.results.outcome import read_outcome_table
    from histobench.mint.results.stored_episode import find_result_files, read_episodes

    if path.name.endswith((".csv", ".csv.gz")):
        yield from read_outcome_table(path)
        return
    for file in find_result_files(path):
        for episode in read_episodes(file):
            yield episode.outcome


def _print(standings: Sequence[Standing]) -> None:
    from rich.console import Console
    from rich.table import Table

    from histobench.mint.results.leaderboard import AVERAGE, display_name

    budgets = sorted({k for standing in standings for k in standing.rates})
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for title in [*(f"SR{k}" for k in budgets), "slope", "R²", "SR5+expert", "gain", "episodes"]:
        table.add_column(title, justify="right")
    for standing in standings:
        line = standing.trend
        helped = standing.with_feedback.get(AVERAGE)
        table.add_row(
            display_name(standing.model),
            *(_number(standing.rates.get(k)) for k in budgets),
            _number(line.slope if line else None),
            _number(line.r2 if line else None),
            _number(helped, 1),
            _number(standing.feedback_gain, 1, sign=True),
            str(standing.episodes),
        )
    Console().print(table)


def _number(value: float | None, decimals: int = 2, *, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.{decimals}f}"
