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
    from histobench.consult.findings import Contrast, Findings, Line

ACCURACY = ("first", "tool", "final", "over_tool", "over_none", "closure", "deferred", "unanswered")
TRUST = ("u_right", "u_wrong", "discrimination", "accept", "rair", "rsr", "mis_reliance", "brier")
PLAIN = ("aurc", "ece", "dollars_per_correct", "tokens_per_correct", "calls_per_correct")
#: Shares that are so common that their interval would crowd the table out.
WITHOUT_INTERVAL = ("first", "tool", "closure", "deferred", "unanswered", "accept", "rair", "rsr", "brier")


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
    _print_lines(console, lines, ACCURACY, "accuracy of first answer, tool alone and final answer")
    _print_lines(console, lines, TRUST, "trust: follows the tool when it is right, and when it is wrong")
    _print_plain(console, lines)
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
    from histobench.consult.findings import Findings
    from histobench.consult.plays import read_plays
    from histobench.consult.study import RUNS, open_study

    study = open_study(args.study)
    plays = read_plays(study, args.runs or study.folder / RUNS)
    return Findings(study, plays, n_resamples=args.resamples, seed=args.seed)


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


def _print_lines(console: Any, lines: Sequence[Line], names: Sequence[str], title: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("agent", "arm"):
        table.add_column(name)
    for name in ("cases", *names):
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        cells = []
        for name in names:
            estimate = line.estimates.get(name)
            interval = None if estimate is None or name in WITHOUT_INTERVAL else estimate.interval
            cells.append("" if estimate is None else with_interval(estimate.value, interval))
        table.add_row(line.agent, line.arm, str(line.cases), *cells)
    console.print(table)


def _print_plain(console: Any, lines: Sequence[Line]) -> None:
    from rich.table import Table

    table = Table(
        title="calibration and cost of a right answer", title_justify="left", box=None, pad_edge=False
    )
    for name in ("agent", "arm"):
        table.add_column(name)
    for name in PLAIN:
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        table.add_row(line.agent, line.arm, *(_plain(line.plain.get(name)) for name in PLAIN))
    console.print(table)


def _print_contrasts(console: Any, contrasts: dict[str, list[Contrast]], words: dict[str, str]) -> None:
    from rich.table import Table

    table = Table(
        title="pre-registered contrasts (p by Holm over the agent's four)",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("agent", "contrast"):
        table.add_column(name)
    for name in ("value", "p", "p (Holm)"):
        table.add_column(name, justify="right")
    for agent, each in contrasts.items():
        for contrast in each:
            shown = [with_interval(contrast.value, contrast.interval)]
            shown += [_plain(contrast.p_value), _plain(contrast.adjusted)]
            if contrast.reason:
                shown = [contrast.reason, "", ""]
            table.add_row(agent, words[contrast.name], *shown)
    console.print(table)


def with_interval(value: float | None, interval: Any) -> str:
    """A value with the bounds of its interval, where it has some."""
    if value is None:
        return "-"
    if interval is None or interval.low is None:
        return f"{value:.3f}"
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
