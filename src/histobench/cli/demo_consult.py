"""The Consult part of the demo: a small study, reference agents, and a very small model that asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = "consult"
ARMS = ("none", "strong", "random", "sequence", "sequence-same")
POLICIES = ("always-trust", "reader", "rational", "learner")
CASES = 36
#: Few and short: on two cores this is half a minute.
MODEL = {"agent": "local:", "limit": 3, "constrain": True, "max_tokens": 64}


def play_consult(
    table: Path, output: Path, console: Console, *, encoders: Sequence[str], seed: int = 0
) -> None:
    """Prepare, play and print the tables; what is missing is told, and the demo goes on."""
    from histobench.cli.consult_table import TABLES, print_lines
    from histobench.consult.findings import findings_of

    study = output / FOLDER
    console.print(
        f"\nConsult: does an agent use an image encoder well? {CASES} tiles, {len(ARMS)} arms", style="bold"
    )
    try:
        with console.status("asking every encoder about the cases"):
            _prepare(table, study, encoders, seed)
        for policy in POLICIES:
            _play(study, "all", agent=f"policy:{policy}", max_tokens=800)
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return
    try:
        _play(study, "strong", **MODEL)
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
    from histobench.roi.data.source import load_dataset

    dataset = load_dataset(table, classes_file=table.with_suffix(".txt"))
    plan = StudyPlan(
        tuple(encoders),
        ARMS,
        cases=CASES,
        seed=seed,
        organ="colon",
        region="a synthetic tile that a program has drawn to look like tissue",
        measured=5,
        sequences=4,
        sequence_length=12,
        compile="off",  # as in the demo's own run, whose features are known by now
    )
    prepare(dataset, plan, study)


def _play(study: Path, arms: str, **options: Any) -> None:
    from functools import partial

    from histobench.cli.mint_progress import progress_display
    from histobench.cli.terminal import open_terminal
    from histobench.consult.playing import ConsultRun, play
    from histobench.mint.runs.options import RunOptions

    run = ConsultRun(str(study), RunOptions(**options), arms, outcomes=True)
    outcome = play(run, display=partial(progress_display, open_terminal(error=True))).outcome
    if not outcome.complete:
        raise HistobenchError("; ".join(map(str, outcome.problems)) or "some episodes were not finished")
