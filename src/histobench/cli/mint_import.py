"""Logs of Inspect, of any benchmark, as a table of outcomes that `mint table` and `mint compare` read.

A sample becomes an episode: its task, its id, whether its first score says that it was solved, its tokens.
What a log does not tell (invalid actions) stays empty, and its budget is the most turns of any sample;
samples without a clear verdict are left out.

Example:
  histobench mint import logs/*.eval -o outcomes.csv
"""

from __future__ import annotations

import argparse

from histobench.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Logs in, a table out."""
    parser.add_argument("logs", nargs="+", help="logs of Inspect (.eval or .json)")
    parser.add_argument("-o", "--output", required=True, help="the table (.csv)")


def run(args: argparse.Namespace) -> None:
    """Read all, write one table, say how many."""
    from histobench.core.errors import HistobenchError
    from histobench.mint.results.outcome import write_outcome_table

    try:
        from histobench.mint.exchange.inspect_logs import import_outcomes
    except ImportError as error:
        raise HistobenchError("logs of Inspect need pip install 'histobench[inspect]'") from error
    outcomes = [outcome for log in args.logs for outcome in import_outcomes(log)]
    if not outcomes:
        raise HistobenchError("no sample of these logs has a score that says solved or not solved")
    write_outcome_table(args.output, outcomes)
    say(f"{len(outcomes)} episodes in {args.output}")
