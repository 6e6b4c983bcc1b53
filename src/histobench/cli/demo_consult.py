"""The Consult part of the demo: a small study, reference agents, and a very small model that asks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = "consult"
ARMS = ("none", "strong", "random", "swap")
POLICIES = ("always-trust", "reader", "rational")
CASES = 36
#: Few and short: on two cores this is half a minute.
MODEL = ("--agent", "local:", "--arms", "strong", "--limit", "3", "--constrain", "--max-tokens", "64")


def play_consult(
    table: Path, output: Path, console: Console, *, encoders: Sequence[str], seed: int = 0
) -> None:
    """Prepare, play and print the tables; what is missing is told, and the demo goes on."""
    from histobench.cli.consult_table import TABLES, findings_of, print_lines

    study = output / FOLDER
    console.print(
        f"\nConsult: does an agent use an image encoder well? {CASES} tiles, {len(ARMS)} arms", style="bold"
    )
    try:
        with console.status("asking every encoder about the cases"):
            _prepare(table, study, encoders, seed)
        for policy in POLICIES:
            _play(study, "--agent", f"policy:{policy}", "--arms", "all")
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return
    try:
        _play(study, *MODEL)
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
    findings = findings_of(study)
    lines = findings.lines()
    for title in list(TABLES)[:2]:
        print_lines(console, lines, title)
    for verdict in findings.against_reader():
        console.print(verdict.sentence, soft_wrap=True)
    console.print(f"all measures: histobench consult table {study}", soft_wrap=True)


def _prepare(table: Path, study: Path, encoders: Sequence[str], seed: int) -> None:
    from histobench.consult.encoder_views import StudyPlan
    from histobench.consult.prepare import prepare
    from histobench.roi.data.load import load_dataset

    dataset = load_dataset(table, classes_file=table.with_suffix(".txt"))
    plan = StudyPlan(
        tuple(encoders),
        ARMS,
        cases=CASES,
        seed=seed,
        organ="colon",
        region="a synthetic tile that a program has drawn to look like tissue",
        measured=5,
        compile="off",  # as in the demo's own run, whose features are known by now
    )
    prepare(dataset, plan, study)


def _play(study: Path, *flags: str) -> None:
    from histobench.cli import consult_run

    parser = argparse.ArgumentParser()
    consult_run.add_arguments(parser)
    *_, outcome = consult_run.play(parser.parse_args([str(study), *flags]))
    if not outcome.complete:
        raise HistobenchError("; ".join(map(str, outcome.problems)) or "some episodes were not finished")
