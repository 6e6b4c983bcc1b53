"""What agents make of the encoders that they consult: accuracy, trust, the registered contrasts, cost.

Every case counts by the inverse of its chance to be selected, so that numbers are about all test images.
Intervals (95 %) come from leaving out whole groups (patients or slides; in sequences, whole sequences) one at
a time, with Student's t.

Examples:
  histobench consult table study/
  histobench consult table study/ --runs elsewhere/ --json table.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.consult.findings import Contrast, Line, SequenceFindings
    from histobench.consult.study import BlindingCheck

#: Tables of at most 80 characters: title -> measures.
TABLES: dict[str, tuple[str, ...]] = {
    "accuracy of first answer, tool alone and final answer": ("first", "tool", "final", "over_tool"),
    "effective number of cases, in all and with a wrong tool": ("cases", "effective", "effective_wrong"),
    "trust: follows the tool when it is right, and when it is wrong": (
        "u_right",
        "u_wrong",
        "discrimination",
    ),
    "what the tool changed": ("asked", "over_none", "closure", "regret"),
    "appropriate reliance, deferral and confidence": (
        "rair",
        "rsr",
        "deferred",
        "unanswered",
        "brier",
        "aurc",
        "ece",
    ),
    "cost of a right answer": (
        "dollars_per_correct",
        "tokens_per_correct",
        "calls_per_correct",
        "device_seconds_per_correct",
    ),
}
HEADINGS = {
    "over_tool": "final - tool",
    "over_none": "final - none",
    "discrimination": "J = difference",
    "effective_wrong": "with a wrong tool",
    "dollars_per_correct": "dollars",
    "tokens_per_correct": "tokens",
    "calls_per_correct": "calls",
    "device_seconds_per_correct": "device seconds",
}
#: What is printed with its interval; all others are in --json.
WITH_INTERVAL = ("final", "over_tool", "over_none", "u_right", "u_wrong", "discrimination")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, and where the numbers go."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    parser.add_argument("--runs", help="folder of the episodes (default: runs in the study)")
    parser.add_argument("--json", type=Path, help="file for all numbers, those of every measure included")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    from histobench.cli.whole_lines import whole_lines
    from histobench.consult.findings import findings_of
    from histobench.core.files import write_json

    findings = findings_of(args.study, runs=args.runs)
    console = whole_lines()
    lines = findings.lines()
    for title in TABLES:
        print_lines(console, lines, title)
    _print_contrasts(console, {agent: findings.contrasts(agent) for agent in findings.agents})
    found = [each for agent in findings.agents if (each := findings.sequences(agent)) is not None]
    if found:
        _print_sequences(console, found)
    _print_blinding(console, findings.study.facts.blinding)
    for agent in findings.agents:
        ranks = findings.usefulness(agent)
        if ranks["probe"] is not None:
            console.print(
                f"{agent}: usefulness of {ranks['encoders']:.0f} encoders against their ranks: Kendall's tau "
                f"{ranks['probe']:.2f} (linear probe), {_plain(ranks['knn'])} (KNN)",
                soft_wrap=True,
            )
    for verdict in findings.against_reader():
        console.print(verdict.sentence, soft_wrap=True)
    for caution in findings.study.facts.cautions:
        console.print(f"caution: {caution}", soft_wrap=True)
    if args.json:
        write_json(args.json, findings.as_json())
    return 0


def print_lines(console: Console, lines: Sequence[Line], title: str) -> None:
    """One of the tables: agents as headings, a line for each arm."""
    header = ["arm", *(HEADINGS.get(name, name.replace("_", " ")) for name in TABLES[title])]
    rows = [[line.arm, *(_cell(line, name) for name in TABLES[title])] for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    gap = "  " if 2 + sum(widths) + 2 * (len(widths) - 1) <= 80 else " "

    def say(cells: Sequence[str], style: str | None = None) -> None:
        arm, *values = cells
        shown = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
        console.print(gap.join([f"  {arm:<{widths[0]}}", *shown]), style=style, soft_wrap=True)

    console.print(title, style="bold italic", soft_wrap=True)
    say(header, "bold")
    for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
        if place == 0 or lines[place - 1].agent != line.agent:
            console.print(line.agent, soft_wrap=True)
        say(row)
    console.print()


def _cell(line: Line, name: str) -> str:
    if name == "cases":
        return str(line.cases)
    if name in ("effective", "effective_wrong"):
        return f"{getattr(line, name):.1f}"
    if name in line.plain:
        return _plain(line.plain[name])
    estimate = line.estimates.get(name)
    if estimate is None:
        return "-"
    return with_interval(estimate.value, estimate.interval if name in WITH_INTERVAL else None)


def _print_contrasts(console: Console, contrasts: dict[str, list[Contrast]]) -> None:
    console.print("registered contrasts (p by Holm over those registered before play)", style="bold italic")
    for agent, each in contrasts.items():
        console.print(agent, soft_wrap=True)
        for contrast in each:
            console.print(f"  {contrast.words}", soft_wrap=True)
            if contrast.value is None:
                console.print(f"    {contrast.reason}", soft_wrap=True)
                continue
            shown = with_interval(contrast.value, contrast.interval)
            tested = f"p {_plain(contrast.p_value)}, Holm {_plain(contrast.adjusted)}"
            units = "sequences" if "sequence" in contrast.words else "groups"
            when = f"registered {contrast.registered}" if contrast.registered else "as in the protocol"
            said = [
                shown if contrast.reason else f"{shown}, {tested}",
                contrast.reason,
                f"{contrast.groups} {units}, {contrast.effective:.1f} effective cases; {when}",
                "" if contrast.in_advance else "registered after the agent had played: exploratory",
            ]
            for line in filter(None, said):
                console.print(f"    {line}", soft_wrap=True)
    console.print()


def _print_sequences(console: Console, found: Sequence[SequenceFindings]) -> None:
    first = found[0]
    console.print(
        f"sequences of {first.length} cases, the encoder replaced after {first.change}", style="bold italic"
    )
    console.print("  last quarter before and after, and minus the same without a change", soft_wrap=True)
    for each in found:
        console.print(each.agent, soft_wrap=True)
        for part in each.parts:
            changed = with_interval(part.changed.value, part.changed.interval)
            difference = (
                "-"
                if part.difference is None
                else with_interval(part.difference.value, part.difference.interval)
            )
            name = HEADINGS.get(part.measure, part.measure).partition(" ")[0]
            console.print(f"  {name:<8} {part.part:<7} {changed:>22}  {difference:>23}", soft_wrap=True)
        adapted = sum(until is not None for until in each.cases_until)
        said = "not within the sequence" if each.median is None else f"{each.median:.0f} (median)"
        alarms = "-" if each.false_alarms is None else f"{100 * each.false_alarms:.0f} %"
        if each.cases_until:
            console.print(f"  cases until u_wrong has halved: {said}", soft_wrap=True)
            console.print(
                f"  adapted in {adapted} of {each.sequences} sequences; without a change in {alarms}",
                soft_wrap=True,
            )
    console.print()


def _print_blinding(console: Console, checks: Sequence[BlindingCheck]) -> None:
    if not checks:
        console.print("blinding: not checked (a study of histobench 0.2)\n", soft_wrap=True)
        return
    console.print("blinding: AUC with which the form of answers tells arms apart", style="bold italic")
    for check in checks:
        console.print(
            f"  {check.first} and {check.second}: {check.auc:.2f} [{check.low:.2f}, {check.high:.2f}]",
            soft_wrap=True,
        )
    console.print()


def with_interval(value: float | None, interval: Any) -> str:
    """A value with the bounds of its interval, where it has some."""
    if value is None:
        return "-"
    if interval is None or interval.low is None:
        return f"{value:.3f}"
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
