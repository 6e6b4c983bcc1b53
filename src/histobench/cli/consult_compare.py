"""Two agents on the same cases: differences of every measure with intervals, paired by case, in each arm.

Examples:
  histobench consult compare study/ gpt-4o-mini policy-reader
  histobench consult compare study/ gpt-4o-mini policy-reader --arm sequence
"""

from __future__ import annotations

import argparse
import math

from histobench.cli.consult_table import add_arguments as add_table_arguments
from histobench.cli.consult_table import with_interval
from histobench.core.errors import HistobenchError

COMPARED = ("final", "balanced", "u_right", "u_wrong", "discrimination", "brier")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The table's flags, the two agents, and the arm."""
    add_table_arguments(parser)
    parser.add_argument("agent", help="an agent by its name in the table")
    parser.add_argument("other", help="the one it is compared with")
    parser.add_argument("--arm", help="one arm (default: every arm that both have played)")


def run(args: argparse.Namespace) -> int:
    """Print a row for each arm and measure; p-values are Holm's over all rows."""
    from dataclasses import asdict

    from rich.table import Table

    from histobench.cli.whole_lines import whole_lines
    from histobench.consult.findings import findings_of
    from histobench.core.files import write_json
    from histobench.statistics.tests import holm

    findings = findings_of(args.study, runs=args.runs)
    one, other = (findings.check_agent(name) for name in (args.agent, args.other))
    shared = [arm for arm in findings.study.facts.arms if {(one, arm), (other, arm)} <= set(findings.plays)]
    arms = [arm for arm in shared if args.arm in (None, arm)]
    if not arms:
        raise HistobenchError(f"no arm that both have played; shared: {', '.join(shared) or 'none'}")
    rows = []
    for arm in arms:
        for measure in COMPARED:
            estimate, p_value = findings.compare(measure, (one, arm), (other, arm))
            if estimate.value is not None:
                rows.append((arm, measure, estimate, float("nan") if p_value is None else p_value))
    adjusted = holm([p_value for *_, p_value in rows])
    table = Table(title=f"{args.agent} minus {args.other}", title_justify="left", box=None, pad_edge=False)
    for name in ("arm", "measure"):
        table.add_column(name)
    for name in ("difference", "p", "p (Holm)"):
        table.add_column(name, justify="right")
    for (arm, measure, estimate, p_value), corrected in zip(rows, adjusted, strict=True):
        shown = with_interval(estimate.value, estimate.interval)
        table.add_row(arm, measure.replace("_", " "), shown, _p(p_value), _p(corrected))
    whole_lines().print(table)
    if args.json:
        record = [
            {
                "arm": arm,
                "measure": measure,
                **asdict(estimate),
                "p_value": _known(p_value),
                "holm": _known(corrected),
            }
            for (arm, measure, estimate, p_value), corrected in zip(rows, adjusted, strict=True)
        ]
        write_json(args.json, {"agent": one, "other": other, "rows": record})
    return 0


def _p(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
