"""`histobench consult table` and its neighbors: how well agents use the encoders that they may ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.flags import verbose_option
from histobench.cli.terminal import open_terminal, print_table, with_bounds
from histobench.consult.study_plan import ReadsStudy
from histobench.core.files import write_json
from histobench.core.records import option, record
from histobench.core.text import count_of

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.consult.findings import Contrast, Estimate, Line, SequenceFindings
    from histobench.consult.pilot import CasePlan


#: Tables of at most 80 characters: title -> measures.
TABLES = {
    "accuracy of first answer, tool alone and final answer": "first tool final over_tool",
    "effective number of cases: all, and those with a wrong tool": "cases effective effective_wrong",
    "trust: follows the tool when it is right, and when it is wrong": "u_right u_wrong discrimination",
    "what the tool changed": "asked over_none closure regret",
    "appropriate reliance, deferral and confidence": "rair rsr deferred unanswered brier aurc ece",
    "cost of a right answer": "dollars_per_correct tokens_per_correct calls_per_correct "
    "device_seconds_per_correct",
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


@record
class StudyFlags(ReadsStudy):
    """The flags of every command that reads the results of a study."""

    results: str | None = option(
        "folder of the episodes", default=None, default_text="runs in the study", old=("--runs",)
    )
    json: Path | None = option("also write every measure to this file", default=None)


@record
class ConsultTableFlags(StudyFlags):
    verbose: bool = verbose_option("print all tables: trust, reliance, cost, every contrast")


def table_command(args: ConsultTableFlags) -> int:
    """Show how well agents use the encoders that they may ask: accuracy, the
    registered contrasts and, with --verbose, trust, reliance and cost.

    Every case is weighted by the inverse of its selection probability, so that the
    numbers are about all test images. Intervals (95 %) leave out one group (patient
    or slide; in sequences, one sequence) at a time, with Student's t.

    Examples:
      histobench consult table study/
      histobench consult table study/ --results elsewhere/ --json table.json
    """
    from histobench.consult.findings import findings_of, is_policy

    findings = findings_of(args.study, runs=args.results)
    console = open_terminal()
    lines = findings.lines()
    if args.verbose:
        for title in TABLES:
            print_lines(console, lines, title)
    else:
        print_accuracy(lines, console)
        console.print(findings.study.facts.legend)
        grouped = any(case.group for case in findings.study.cases)
        units = count_of(findings.units_played, "group" if grouped else "case")
        sequences = " (in sequence arms: over sequences)" if findings.has_sequences else ""
        console.print(
            f"Cases are weighted to represent all test images.\n95% intervals over {units}{sequences}."
        )
    for agent in findings.agents:
        if args.verbose or not is_policy(agent):
            _print_contrasts(console, agent, findings.contrasts(agent), verbose=args.verbose)
    if args.verbose:
        found = [each for agent in findings.agents if (each := findings.sequences(agent)) is not None]
        if found:
            _print_sequences(console, found)
        checks = findings.study.facts.blinding
        if checks:
            title = "blinding: AUC of a classifier of the arms by the form of the answers"
            console.print(title, style="bold italic")
            console.print("".join(f"  {check.sentence}\n" for check in checks))
        else:
            console.print("blinding: not checked (a study of histobench 0.2)\n")
        for agent in findings.agents:
            ranks = findings.usefulness(agent)
            if ranks["probe"] is not None and (ranks["encoders"] or 0) > 2:
                console.print(
                    f"{agent}: accuracy with {ranks['encoders']:.0f} encoders against their own accuracy: "
                    f"Kendall's tau {ranks['probe']:.2f} (linear probe), {_plain(ranks['knn'])} (KNN)"
                )
        console.print("What each measure means: docs/explanation/consult.md, section Measures")
    for verdict in findings.against_reader():
        console.print(verdict.sentence)
    for caution in findings.study.facts.cautions:
        console.print(f"caution: {caution}")
    if args.json:
        write_json(args.json, findings.as_json())
    if not args.verbose:
        console.print("More: --verbose (trust, reliance, cost, contrasts of policies), --json FILE")
    return 0


def print_accuracy(lines: Sequence[Line], console: Console) -> None:
    """Agents as rows, tools as columns: accuracy of the final answer with its interval."""
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        shown = rows.setdefault(line.agent, {"agent": line.agent})
        shown[line.arm] = with_interval(line.estimates.get("final"))
    title = "Consult: accuracy of the agents' final answers, by what they may ask (arm)"
    print_table(list(rows.values()), console, title=title)


def print_lines(console: Console, lines: Sequence[Line], title: str) -> None:
    """One of the tables: agents as headings, a line for each arm."""
    rows = []
    for place, line in enumerate(lines):
        if place == 0 or lines[place - 1].agent != line.agent:
            rows.append({"arm": line.agent})
        names = {HEADINGS.get(name, name.replace("_", " ")): name for name in TABLES[title].split()}
        cells = {heading: _cell(line, name) for heading, name in names.items()}
        rows.append({"arm": f"  {line.arm}", **cells})
    print_table(rows, console, title=title)
    console.print()


def _cell(line: Line, name: str) -> str:
    if name == "cases":
        return str(line.cases)
    if name in ("effective", "effective_wrong"):
        return f"{getattr(line, name):.1f}"
    if name in line.plain:
        return _plain(line.plain[name])
    estimate = line.estimates.get(name)
    if estimate is None or name in WITH_INTERVAL:
        return with_interval(estimate)
    return with_bounds(estimate.value, None, None)


def _print_contrasts(
    console: Console, agent: str, contrasts: Sequence[Contrast], *, verbose: bool = False
) -> None:
    console.print(f"{agent}: registered contrasts (p: Holm)", style="bold")
    for contrast in contrasts:
        tested = contrast.reason or f"p {_plain(contrast.adjusted)}"
        if contrast.value is not None:
            tested = f"{with_interval(contrast)}  {tested}"
        if not contrast.in_advance:
            tested += "; exploratory: registered after the agent had played"
        console.print(f"  {contrast.words}\n    {tested}")
        if verbose and contrast.value is not None:
            units = "sequences" if "sequence" in contrast.words else "groups"
            when = f"registered {contrast.registered}" if contrast.registered else "as in the protocol"
            console.print(f"    {contrast.groups} {units}, {contrast.effective:.1f} effective cases; {when}")
    console.print()


def _print_sequences(console: Console, found: Sequence[SequenceFindings]) -> None:
    first = found[0]
    console.print(
        f"sequences of {first.length} cases, the encoder replaced after {first.change}", style="bold italic"
    )
    console.print("  last quarter before and after, and minus the same without a change")
    for each in found:
        console.print(each.agent)
        for part in each.parts:
            changed, difference = with_interval(part.changed), with_interval(part.difference)
            name = HEADINGS.get(part.measure, part.measure).partition(" ")[0]
            console.print(f"  {name:<8} {part.part:<7} {changed:>22}  {difference:>23}")
        adapted = sum(until is not None for until in each.cases_until)
        said = "not within the sequence" if each.median is None else f"{each.median:.0f} (median)"
        alarms = "-" if each.false_alarms is None else f"{100 * each.false_alarms:.0f} %"
        if each.cases_until:
            console.print(f"  cases until u_wrong has halved: {said}")
            console.print(
                f"  adapted in {adapted} of {each.sequences} sequences; without a change in {alarms}"
            )
    console.print()


def with_interval(found: Estimate | Contrast | None) -> str:
    """A value with the bounds of its interval, where it has some."""
    if found is None or found.interval is None:
        return with_bounds(None if found is None else found.value, None, None)
    return with_bounds(found.value, found.interval.low, found.interval.high)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


@record
class ConsultCompareFlags(StudyFlags):
    agent: str = option("agent, by its name in the table", default="", positional=True, required=True)
    other: str = option("agent to compare it with", default="", positional=True, required=True)
    arm: str | None = option("one arm", default=None, default_text="every arm that both have played")


def compare_command(args: ConsultCompareFlags) -> int:
    """Compare two agents on the same cases: the difference of every measure in each
    arm, paired by case, with intervals.

    Examples:
      histobench consult compare study/ gpt-4o-mini policy-reader
      histobench consult compare study/ gpt-4o-mini policy-reader --arm sequence
    """
    from histobench.consult.findings import findings_of

    rows = findings_of(args.study, runs=args.results).agents_compared(args.agent, args.other, arm=args.arm)
    print_table(
        [
            {
                "arm": row.arm,
                "measure": row.measure.replace("_", " "),
                "difference": with_interval(row.estimate),
                "p": _plain(row.p_value),
                "p (Holm)": _plain(row.adjusted),
            }
            for row in rows
        ],
        title=f"{args.agent} minus {args.other}",
        lead=2,
    )
    if args.json:
        record = [
            {
                "arm": row.arm,
                "measure": row.measure,
                **asdict(row.estimate),
                "p_value": row.p_value,
                "holm": row.adjusted,
            }
            for row in rows
        ]
        write_json(args.json, {"agent": args.agent, "other": args.other, "rows": record})
    return 0


@record
class ConsultPowerFlags(StudyFlags):
    agent: str = option("agent, by its name in the table", default="", positional=True, required=True)
    delta: float = option("contrast to detect", default=0.1, above=0, most=2)
    power: float = option("probability of detecting it", default=0.8, above=0, below=1)
    alpha: float = option("two-sided error rate of all contrasts", default=0.05, above=0, below=1)
    seed: int = option("seed of the simulated studies", default=0, least=0)


def power_command(args: ConsultPowerFlags) -> int:
    """Compute how many cases the next study needs to detect each registered
    contrast, from the pilot runs of one agent.

    Assumes that future cases, weights and groups are like those of the pilot. A
    small pilot estimates its own noise poorly: the answer is a range, and the number
    that has the given power on average over that range.

    Examples:
      histobench consult power pilot/ gpt-4o-mini
      histobench consult power pilot/ gpt-4o-mini --delta 0.05 --power 0.9
    """
    from histobench.consult.findings import findings_of
    from histobench.consult.pilot import plan_cases

    findings = findings_of(args.study, runs=args.results)
    findings.check_agent(args.agent)
    plan = plan_cases(
        findings, args.agent, delta=args.delta, power=args.power, alpha=args.alpha, seed=args.seed
    )
    _print(plan)
    if args.json:
        write_json(args.json, asdict(plan))
    return 0


def _print(plan: CasePlan) -> None:
    console = open_terminal()
    console.print(
        f"{plan.agent}: to detect a contrast of {plan.delta:g} with power {plan.power:g} "
        f"(two-sided, alpha {plan.alpha:.3g} each, Holm's first step)"
    )
    rows = []
    for contrast in plan.contrasts:
        estimate = contrast.estimate
        row = {"contrast": contrast.name, "pilot": f"{contrast.cases:,}"}
        if estimate is None:
            rows.append({**row, "need": str(contrast.reason)})
            continue
        # Units are groups, or sequences: each is as large as in the pilot.
        size = contrast.cases / contrast.groups
        needed, low, high = (
            f"{round(units * size):,}"
            for units in (estimate.units_needed, estimate.units_low, estimate.units_high)
        )
        detectable = f"{estimate.detectable:.3f}"
        rows.append({**row, "need": needed, "80 % range": f"{low}-{high}", "pilot shows": detectable})
    print_table(rows, console, notes=[f"{contrast.name}: {contrast.words}" for contrast in plan.contrasts])
    groups = " in groups as large as the pilot's" if plan.unit == "groups" else ""
    sequences = any(each.name == "sequence" and each.estimate for each in plan.contrasts)
    console.print(
        f"Numbers are cases{groups}, chosen as in the pilot; `pilot shows` is the contrast that the pilot "
        "itself would detect with that power."
        + (" In sequences the last quarter counts: prepare four times as many." if sequences else "")
    )
