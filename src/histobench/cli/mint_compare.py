"""Compare two agents (or one with and without an expert) on the tasks that both have played.

The difference is taken task by task (Student's t over tasks, within datasets); the p-value is of "no
difference", beside it corrected for reading the whole table (Holm; * where the difference then holds at 5 %).
RESULTS are folders of
runs, recordings or outcome tables; --first and --second each name a model, or MODEL+EXPERT for a run with
feedback (MODEL+EXPERT/KIND where an expert gave several kinds).

Examples:
  histobench mint compare outputs/ --first gpt-4o-mini --second SmolLM2-135M-Instruct
  histobench mint compare outputs/ --first gpt-4o-mini+placebo --second gpt-4o-mini
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import TYPE_CHECKING

from histobench.cli.flag_values import seed
from histobench.cli.whole_lines import whole_lines
from histobench.core.errors import HistobenchError, did_you_mean

if TYPE_CHECKING:
    from histobench.mint.results.outcome import EpisodeOutcome


#: The chance of any false claim in a table.
ALPHA = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the two agents that are compared, each with its expert if it had one."""
    parser.add_argument("results", nargs="+", help="folders of runs, recordings or outcome tables")
    parser.add_argument("--first", required=True, help="MODEL or MODEL+EXPERT[/KIND]")
    parser.add_argument("--second", required=True, help="MODEL or MODEL+EXPERT[/KIND]")
    parser.add_argument("--k", type=int, default=5, help="the budget (default: 5)")
    parser.add_argument("--seed", type=seed, default=0, help="accepted for older commands; nothing is drawn")


def run(args: argparse.Namespace) -> None:
    """Print a line over all tasks, for each family and for each dataset."""
    from histobench.mint.exchange.reading import read_outcomes
    from histobench.mint.results.comparison import compare_agents

    sides: dict[str, list[EpisodeOutcome]] = defaultdict(list)
    for path in args.results:
        for outcome in read_outcomes(path):
            if outcome.k == args.k:
                for name in _names(outcome):
                    sides[name].append(outcome)
    for name in (args.first, args.second):
        if name not in sides:
            raise HistobenchError(f"no episodes of {name!r} with k = {args.k}; {did_you_mean(name, sides)}")
        kinds = sorted({outcome.feedback_type for outcome in sides[name]})
        if len(kinds) > 1:
            choices = " or ".join(f"{name}/{kind}" for kind in kinds)
            raise HistobenchError(f"{name} has feedback of {len(kinds)} kinds; write {choices}")
    compared = compare_agents(sides[args.first], sides[args.second])
    if not compared:
        raise HistobenchError(f"{args.first} and {args.second} have played fewer than two tasks in common")
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("tasks")
    for title in ("n", args.first, args.second, "difference", "95 % interval", "p"):
        table.add_column(title, justify="right")
    table.add_column(f"p (Holm, {len(compared)})", justify="right")
    table.add_column("only first/second", justify="right")
    for row in compared:
        low, high = row.difference.interval.low, row.difference.interval.high
        table.add_row(
            row.group,
            str(row.tasks),
            f"{100 * row.first_rate:.1f} %",
            f"{100 * row.second_rate:.1f} %",
            f"{100 * row.difference.difference:+.1f}",
            "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}",
            f"{row.difference.p_value:.3g}",
            f"{row.p_holm:.3g}" + (" *" if row.p_holm <= ALPHA else "  "),
            f"{row.discordant.only_first}/{row.discordant.only_second}" if row.discordant else "",
        )
    whole_lines().print(table)


def _names(outcome: EpisodeOutcome) -> list[str]:
    from histobench.mint.results.outcome import NO_FEEDBACK

    if outcome.feedback_model == NO_FEEDBACK:
        return [outcome.model]
    name = f"{outcome.model}+{outcome.feedback_model}"
    return [name, f"{name}/{outcome.feedback_type}"]
