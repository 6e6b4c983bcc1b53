"""The leaderboard: success for every budget k, improvement per turn, gain from an expert's feedback.

Takes any mix of outcome tables (.csv, .csv.gz), recordings (*.k5.jsonl.gz) and folders of finished runs
(results.jsonl in the published folders). --by family or --by dataset shows where a model is good, --intervals
how sure its numbers are (over tasks, each with all its episodes). How the episodes ended is told for each
model; --failures chooses which endings count. A model that was run with text
and with native calls (`mint run --calls`) gets a line that compares both on the same tasks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from histobench.cli.whole_lines import whole_lines
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.table import Table

    from histobench.mint.results.outcome import EpisodeOutcome
    from histobench.mint.results.result_tables import DialectRow, Standing
    from histobench.mint.results.uncertainty import TriesRow
    from histobench.statistics.intervals import Interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to tabulate."""
    parser.add_argument("results", nargs="+", help="outcome tables, recordings or folders of runs")
    parser.add_argument("--feedback-model", default="gpt-4-0613", help="expert of the feedback column")
    parser.add_argument("--feedback-type", default="no_GT-textual", help="its kind of feedback")
    parser.add_argument(
        "--by", choices=("all", "family", "dataset"), default="all", help="rows for each of these"
    )
    parser.add_argument("--intervals", action="store_true", help="95 %% intervals and what the agents did")
    parser.add_argument(
        "--failures",
        metavar="OUTCOMES",
        help="outcomes that count as failures, with commas, or all; episodes of other outcomes are left out "
        "of every rate (default: all but checker_error and provider_failure, which are played again)",
    )
    parser.add_argument("--json", help="also write the table to this file, in the published shape")


def run(args: argparse.Namespace) -> None:
    """Print the table, best first."""
    from histobench.core.files import write_json
    from histobench.mint.exchange.reading import read_all_outcomes
    from histobench.mint.results.outcome import FAILURES, NO_FEEDBACK, counted, parse_failures
    from histobench.mint.results.result_tables import dialect_rows, leaderboard
    from histobench.mint.results.uncertainty import tries_rows

    everything = [outcome for path in args.results for outcome in read_all_outcomes(path)]
    failures = FAILURES if args.failures is None else parse_failures(args.failures)
    outcomes = counted(everything, failures)
    if not outcomes:
        whole_lines().print(_outcomes(everything, failures))
        raise HistobenchError(f"no finished episode in {', '.join(args.results)}")
    standings = leaderboard(outcomes, feedback_model=args.feedback_model, feedback_type=args.feedback_type)
    standings.sort(key=lambda standing: -standing.rates.get(5, max(standing.rates.values(), default=0.0)))
    whole_lines().print(_leaderboard(standings))
    whole_lines().print(_outcomes(everything, failures))
    if args.intervals or args.by != "all":
        whole_lines().print(_groups(outcomes, args.by))
    if args.intervals and any(outcome.feedback_model != NO_FEEDBACK for outcome in outcomes):
        whole_lines().print(_feedback(outcomes))
    if tries := tries_rows(outcomes):
        whole_lines().print(_tries(tries))
    dialects = dialect_rows(outcomes)
    if dialects:
        whole_lines().print(_dialects(dialects))
    if args.json:
        write_json(args.json, {standing.model: standing.as_published() for standing in standings})


def _leaderboard(standings: Sequence[Standing]) -> Table:
    from histobench.mint.results.result_tables import AVERAGE, display_name

    budgets = sorted({k for standing in standings for k in standing.rates})
    titles = [*(f"SR{k}" for k in budgets), "slope", "R²", "SR5+expert", "gain", "episodes"]
    table = _table(["model"], titles)
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
    return table


def _outcomes(outcomes: Sequence[EpisodeOutcome], failures: Collection[str]) -> Table:
    """How the episodes of each model went; in brackets what is left out of every rate."""
    from histobench.mint.results.outcome import OUTCOMES, SOLVED
    from histobench.mint.results.result_tables import display_name

    found = Counter(outcome.outcome for outcome in outcomes)
    shown = [name for name in OUTCOMES if found[name] or name in (SOLVED, "wrong")]
    titles = {name: name.replace("_", " ") for name in shown}
    runs: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        runs.setdefault(outcome.model, Counter())[outcome.outcome] += 1
    table = _table(["outcomes of"], list(titles.values()))
    for model, counts in sorted(runs.items()):
        cells = [
            f"{counts[name]}" if name == SOLVED or name in failures else f"({counts[name]})" for name in shown
        ]
        table.add_row(f"{display_name(model)}:", *cells)
    return table


def _groups(outcomes: Sequence[EpisodeOutcome], by: str) -> Table:
    from histobench.mint.results.result_tables import display_name, group_rows

    rows = group_rows(outcomes, by)
    budgets = sorted({k for row in rows for k in row.rates})
    repeated = any(row.pass_hat is not None for row in rows)
    counted = any(row.tokens is not None for row in rows)
    titles = [*(f"SR{k}" for k in budgets), "95 % interval", "of the slope", "actions", "invalid"]
    titles += ["tokens"] * counted + ["episodes"] + ["all tries", "95 % interval"] * repeated
    table = _table(["model", "tasks"], titles)
    for row in rows:
        cells = [
            *(_number(row.rates.get(k)) for k in budgets),
            _range(row.interval, 100),
            _range(row.slope, 1),
            _number(row.actions, 1),
            f"{100 * row.invalid_rate:.1f} %",
        ]
        if counted:
            cells.append("" if row.tokens is None else f"{row.tokens:,.0f}")
        cells.append(str(row.episodes))
        if repeated:
            cells.append("" if row.pass_hat is None else f"{100 * row.pass_hat:.1f} % (of {row.tries})")
            cells.append(_range(row.pass_hat_interval, 100))
        table.add_row(display_name(row.model), row.group, *cells)
    return table


def _feedback(outcomes: Sequence[EpisodeOutcome]) -> Table:
    from histobench.mint.results.result_tables import display_name, feedback_rows

    rows = feedback_rows(outcomes)
    judged = any(row.leaks is not None for row in rows)
    titles = ["k", "success", "gain", "95 % interval", "p", "episodes", *["answer given away"] * judged]
    table = _table(["model", "expert", "feedback"], titles)
    for row in rows:
        cells = ["", "", ""]
        if row.gain is not None:
            difference = _number(100 * row.gain.difference, 1, sign=True)
            cells = [difference, _range(row.gain.interval, 100, sign="+"), f"{row.gain.p_value:.3g}"]
        cells = [str(row.k), _number(row.rate), *cells, str(row.episodes)]
        if judged:
            cells.append("" if row.leaks is None else f"{100 * row.leaks:.1f} %")
        table.add_row(display_name(row.model), row.expert, row.kind, *cells)
    return table


def _tries(rows: Sequence[TriesRow]) -> Table:
    from histobench.mint.results.result_tables import display_name

    most = max(len(row.pass_at) for row in rows)
    titles = [
        "k",
        "tasks",
        *(f"pass@{n}" for n in range(1, most + 1)),
        *(f"pass^{n}" for n in range(2, most + 1)),
        f"95 % interval of pass^{most}",
    ]
    table = _table(["model, several tries"], titles)
    for row in rows:
        at = [f"{100 * share:.1f} %" for share in row.pass_at] + [""] * (most - len(row.pass_at))
        hat = [f"{100 * share:.1f} %" for share in row.pass_hat] + [""] * (most - len(row.pass_hat))
        interval = _range(row.interval if len(row.pass_hat) == most else None, 100)
        table.add_row(display_name(row.model), str(row.k), str(row.tasks), *at, *hat[1:], interval)
    return table


def _dialects(rows: Sequence[DialectRow]) -> Table:
    from histobench.mint.results.result_tables import display_name

    titles = ["k", "tasks", "success: text", "native", "difference", "95 % interval", "p"]
    titles += ["invalid: text", "native", "tokens: text", "native"]
    table = _table(["model, both dialects"], titles)
    for row in rows:
        cells = ["", "", ""]
        if row.difference is not None:
            difference = _number(100 * row.difference.difference, 1, sign=True)
            interval = _range(row.difference.interval, 100, sign="+")
            cells = [difference, interval, f"{row.difference.p_value:.3g}"]
        sides = (row.text, row.native)
        table.add_row(
            display_name(row.model),
            str(row.k),
            str(row.tasks),
            *(f"{100 * side.success:.1f} %" for side in sides),
            *cells,
            *(f"{100 * side.invalid_rate:.1f} %" for side in sides),
            *("" if side.tokens is None else f"{side.tokens:,.0f}" for side in sides),
        )
    return table


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in names:
        table.add_column(title)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _range(interval: Interval | None, scale: float, *, sign: str = "") -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{scale * interval.low:{sign}.1f} to {scale * interval.high:{sign}.1f}"


def _number(value: float | None, decimals: int = 2, *, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.{decimals}f}"
