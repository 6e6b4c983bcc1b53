"""Two agents on the same cases: differences of every measure with intervals, paired by case, in each arm.

Examples:
  histobench consult compare study/ gpt-4o-mini policy-reader
  histobench consult compare study/ gpt-4o-mini policy-reader --arm swap
"""

from __future__ import annotations

import argparse

from histobench.cli.consult_table import add_arguments as add_table_arguments
from histobench.cli.consult_table import open_findings, with_interval
from histobench.core.errors import HistobenchError, did_you_mean

COMPARED = ("final", "balanced", "u_right", "u_wrong", "discrimination", "brier")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The table's flags, the two agents, and the arm."""
    add_table_arguments(parser)
    parser.add_argument("agent", help="an agent by its name in the table")
    parser.add_argument("other", help="the one it is compared with")
    parser.add_argument("--arm", help="one arm (default: every arm that both have played)")


def run(args: argparse.Namespace) -> int:
    """Print a row for each arm and measure; p-values are Holm's over all rows."""
    import numpy as np
    from rich.table import Table

    from histobench.cli.whole_lines import whole_lines
    from histobench.core.atomic import write_json
    from histobench.core.statistics.multiplicity import holm
    from histobench.core.statistics.paired import paired_difference

    findings = open_findings(args)
    for name in (args.agent, args.other):
        if name not in findings.agents:
            raise HistobenchError(f"no runs of {name!r}; {did_you_mean(name, findings.agents)}")
    shared = [
        arm
        for arm in findings.study.facts.arms
        if {(args.agent, arm), (args.other, arm)} <= set(findings.plays)
    ]
    arms = [arm for arm in shared if args.arm in (None, arm)]
    if not arms:
        raise HistobenchError(f"no arm that both have played; shared: {', '.join(shared) or 'none'}")
    rows = []
    for arm in arms:
        for measure in COMPARED:
            difference = findings.difference(measure, (args.agent, arm), (args.other, arm))
            observed = float(difference(findings.whole)[0])
            if np.isfinite(observed):
                tested = paired_difference(observed, difference(findings.counts), findings.design)
                rows.append((arm, measure, tested))
    adjusted = holm([tested.p_value for _, _, tested in rows])
    table = Table(title=f"{args.agent} minus {args.other}", title_justify="left", box=None, pad_edge=False)
    for name in ("arm", "measure"):
        table.add_column(name)
    for name in ("difference", "p", "p (Holm)"):
        table.add_column(name, justify="right")
    for (arm, measure, tested), p_value in zip(rows, adjusted, strict=True):
        shown = with_interval(tested.difference, tested.interval)
        table.add_row(arm, measure.replace("_", " "), shown, f"{tested.p_value:.3g}", f"{p_value:.3g}")
    whole_lines().print(table)
    if args.json:
        from dataclasses import asdict

        record = [
            {"arm": arm, "measure": measure, **asdict(tested), "holm": float(p_value)}
            for (arm, measure, tested), p_value in zip(rows, adjusted, strict=True)
        ]
        write_json(args.json, {"agent": args.agent, "other": args.other, "rows": record})
    return 0
