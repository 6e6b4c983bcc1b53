"""What agents make of the encoders that they consult: accuracy, trust, the pre-registered contrasts, cost.

Every case counts by the inverse of its chance to be selected, so that numbers are about all test images.
Intervals (95 %) are percentiles of a bootstrap over whole groups (patients or slides).

Examples:
  histobench consult table study/
  histobench consult table study/ --runs elsewhere/ --json table.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.flag_values import positive, seed

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.consult.findings import Contrast, Findings, Line

#: Tables of at most 80 characters: title -> measures.
TABLES: dict[str, tuple[str, ...]] = {
    "accuracy of first answer, tool alone and final answer": ("cases", "first", "tool", "final", "over_tool"),
    "trust: follows the tool when it is right, and when it is wrong": (
        "u_right",
        "u_wrong",
        "discrimination",
    ),
    "what the tool changed": ("asked", "over_none", "closure", "mis_reliance"),
    "appropriate reliance, deferral and confidence": (
        "accept",
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
    "mis_reliance": "mis-reliance",
    "dollars_per_correct": "dollars",
    "tokens_per_correct": "tokens",
    "calls_per_correct": "calls",
    "device_seconds_per_correct": "device seconds",
}
#: What is printed with its interval; all others are in --json.
WITH_INTERVAL = ("final", "over_tool", "over_none", "u_right", "u_wrong", "discrimination")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, how many resamples, and where the numbers go."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    parser.add_argument("--runs", help="folder of the episodes (default: runs in the study)")
    parser.add_argument("--resamples", type=positive, default=2000, help="of whole groups (default: 2000)")
    parser.add_argument("--seed", type=seed, default=0, help="of the resamples (default: 0)")
    parser.add_argument("--json", type=Path, help="file for all numbers, those of every measure included")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    from histobench.cli.whole_lines import whole_lines
    from histobench.consult.findings import CONTRASTS
    from histobench.core.atomic import write_json

    findings = open_findings(args)
    console = whole_lines()
    lines = findings.lines()
    for title in TABLES:
        print_lines(console, lines, title)
    contrasts = {agent: findings.contrasts(agent) for agent in findings.agents}
    _print_contrasts(console, contrasts, CONTRASTS)
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
        write_json(args.json, as_json(findings, lines, contrasts))
    return 0


def open_findings(args: argparse.Namespace) -> Findings:
    """The findings that the flags ask for."""
    return findings_of(args.study, runs=args.runs, n_resamples=args.resamples, seed=args.seed)


def findings_of(folder: str | Path, *, runs: str | None = None, **settings: int) -> Findings:
    """What the runs of a study come to; `settings` are those of `Findings`."""
    from histobench.consult.findings import Findings
    from histobench.consult.measures import read_plays
    from histobench.consult.study import RUNS, open_study

    study = open_study(folder)
    return Findings(study, read_plays(study, runs or study.folder / RUNS), **settings)


def as_json(
    findings: Findings, lines: Sequence[Line], contrasts: dict[str, list[Contrast]]
) -> dict[str, Any]:
    """Everything, for other programs."""
    from dataclasses import asdict

    return {
        "study": asdict(findings.study.facts),
        "lines": [asdict(line) for line in lines],
        "contrasts": [asdict(contrast) for each in contrasts.values() for contrast in each],
        "against_reader": [
            {**asdict(verdict), "beats": verdict.beats} for verdict in findings.against_reader()
        ],
        "usefulness": {agent: findings.usefulness(agent) for agent in findings.agents},
        "dose_slope": {agent: findings.dose_slope(agent) for agent in findings.agents},
    }


def print_lines(console: Console, lines: Sequence[Line], title: str) -> None:
    """One of the tables: agents as headings, a line for each arm."""
    header = ["arm", *(HEADINGS.get(name, name.replace("_", " ")) for name in TABLES[title])]
    rows = [[line.arm, *(_cell(line, name) for name in TABLES[title])] for line in lines]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def say(cells: Sequence[str], style: str | None = None) -> None:
        arm, *values = cells
        shown = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
        console.print("  ".join([f"  {arm:<{widths[0]}}", *shown]), style=style, soft_wrap=True)

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
    if name in line.plain:
        return _plain(line.plain[name])
    estimate = line.estimates.get(name)
    if estimate is None:
        return "-"
    return with_interval(estimate.value, estimate.interval if name in WITH_INTERVAL else None)


def _print_contrasts(console: Console, contrasts: dict[str, list[Contrast]], words: dict[str, str]) -> None:
    header = ("", "value", "p", "p (Holm)")
    console.print("contrasts registered in advance (Holm over an agent's four)", style="bold italic")
    wide = max(map(len, words.values()))
    console.print(
        f"  {header[0]:<{wide}}  {header[1]:>23}  {header[2]:>7} {header[3]:>8}".rstrip(), style="bold"
    )
    for agent, each in contrasts.items():
        console.print(agent, soft_wrap=True)
        for contrast in each:
            value = contrast.reason or with_interval(contrast.value, contrast.interval)
            p, adjusted = (
                ("", "") if contrast.reason else (_plain(contrast.p_value), _plain(contrast.adjusted))
            )
            line = f"  {words[contrast.name]:<{wide}}  {value:>23}  {p:>7} {adjusted:>8}"
            console.print(line.rstrip(), soft_wrap=True)
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
