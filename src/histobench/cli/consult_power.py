"""How many cases the next study needs: each contrast registered in advance, from an agent's pilot runs.

The pilot's cases, weights and groups stand for those to come, and what so small a pilot does not know of its
own noise is part of the answer: a range, and the number that has the wanted power on average over it.

Examples:
  histobench consult power pilot/ gpt-4o-mini
  histobench consult power pilot/ gpt-4o-mini --delta 0.05 --power 0.9
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from histobench.cli.consult_table import add_arguments as add_table_arguments
from histobench.cli.flag_values import seed
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from histobench.consult.pilot import CasePlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The table's flags, the agent, and what is to be seen how surely."""
    add_table_arguments(parser)
    parser.add_argument("agent", help="an agent by its name in the table")
    parser.add_argument("--seed", type=seed, default=0, help="of simulated studies (default: 0)")
    parser.add_argument("--delta", type=float, default=0.1, help="contrast to be seen (default: 0.1)")
    parser.add_argument("--power", type=float, default=0.8, help="chance of seeing it (default: 0.8)")
    parser.add_argument(
        "--alpha", type=float, default=0.05, help="two-sided error rate of all contrasts (default: 0.05)"
    )


def run(args: argparse.Namespace) -> int:
    """Plan, and print a line for each contrast."""
    from dataclasses import asdict

    from histobench.consult.findings import findings_of
    from histobench.consult.pilot import plan_cases
    from histobench.core.files import write_json

    if not 0 < args.delta <= 2:
        raise HistobenchError(f"--delta must lie above 0 and be at most 2, not {args.delta:g}")
    for name, value in (("power", args.power), ("alpha", args.alpha)):
        if not 0 < value < 1:
            raise HistobenchError(f"--{name} must lie between 0 and 1, not {value:g}")
    findings = findings_of(args.study, runs=args.runs)
    findings.check_agent(args.agent)
    plan = plan_cases(
        findings, args.agent, delta=args.delta, power=args.power, alpha=args.alpha, seed=args.seed
    )
    _print(plan)
    if args.json:
        write_json(args.json, asdict(plan))
    return 0


def _print(plan: CasePlan) -> None:
    from rich.table import Table

    from histobench.cli.whole_lines import whole_lines

    console = whole_lines()
    console.print(
        f"{plan.agent}: to see a contrast of {plan.delta:g} with power {plan.power:g} "
        f"(two-sided, alpha {plan.alpha:.3g} each, Holm's first step)",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("contrast")
    for name in ("pilot", "need", "80 % range", "pilot shows"):
        table.add_column(name, justify="right")
    for contrast in plan.contrasts:
        estimate = contrast.estimate
        if estimate is None:
            table.add_row(contrast.name, f"{contrast.cases:,}", contrast.reason, "", "")
            continue
        # Units are groups, or sequences: each is as large as in the pilot.
        size = contrast.cases / contrast.groups
        needed, low, high = (
            f"{round(units * size):,}"
            for units in (estimate.units_needed, estimate.units_low, estimate.units_high)
        )
        table.add_row(
            contrast.name, f"{contrast.cases:,}", needed, f"{low}-{high}", f"{estimate.detectable:.3f}"
        )
    console.print(table)
    for contrast in plan.contrasts:
        console.print(f"{contrast.name}: {contrast.words}", soft_wrap=True)
    groups = " in groups as large as the pilot's" if plan.unit == "groups" else ""
    sequences = any(each.name == "sequence" and each.estimate for each in plan.contrasts)
    console.print(
        f"Numbers are cases{groups}, chosen as in the pilot; `pilot shows` is the contrast that the pilot "
        "itself would show with that power."
        + (" In sequences the last quarter counts: prepare four times as many." if sequences else ""),
        soft_wrap=True,
    )
