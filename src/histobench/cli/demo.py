"""`histobench demo`: the three parts on synthetic data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.flags import seed
from histobench.cli.terminal import open_terminal
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console


ENCODERS = ("efficientnet-lite0", "tiny-vl", "random-vit")


def demo_flags(parser: argparse.ArgumentParser) -> None:
    """Where the demo goes and how large it is."""
    parser.add_argument("-o", "--output", default="demo-results", help="folder (default: demo-results)")
    parser.add_argument("--per-class", type=int, default=40, help="training tiles per class (default: 40)")
    parser.add_argument("--test-per-class", type=int, default=60, help="test tiles per class (default: 60)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the tiles and of everything random")


def demo_command(args: argparse.Namespace) -> int:
    """The whole ROI track on synthetic tissue, a few agents, some that consult an
    encoder, and pages of it all.

    Needs no network and no GPU. The tiles are drawn by a program; what the numbers
    show is that everything works, not which encoder is good at pathology.
    """
    from histobench.cli.run import carry_out
    from histobench.roi.data.demo import write_demo_dataset
    from histobench.roi.options import DatasetEntry, Options, Plan, Settings
    from histobench.roi.task_catalogue import DEFAULT_TASKS, ROBUSTNESS

    console = open_terminal()
    output = Path(args.output)
    with console.status("drawing synthetic tiles"):
        table = write_demo_dataset(
            output / "data",
            train_per_class=args.per_class,
            test_per_class=args.test_per_class,
            seed=args.seed,
            sites="crossed",
        )
    name = table.stem
    console.print(f"synthetic tiles: {table.parent / 'tiles'}", soft_wrap=True)
    plan = Plan(
        datasets=(
            DatasetEntry(
                name,
                table,
                class2id=table.with_suffix(".txt"),
                prompts=table.with_name(f"{name}-Zero_Shot_Prompts.txt"),
            ),
        ),
        encoders=ENCODERS,
        results=output / "results",
        tasks=(*DEFAULT_TASKS, ROBUSTNESS),
        seed=args.seed,
        settings=Settings(batch_size="auto", compile="off"),
        options=Options(n_way=(), n_shot=(1, 2, 4, 8, 16, 32)),
    )
    code = carry_out(plan, console, heading="Synthetic tissue: a demonstration, not a benchmark")
    play_agents(output, console)
    play_consult(table, output, console, encoders=ENCODERS, seed=args.seed)
    build_pages(output, console)
    return code


def build_pages(output: Path, console: Console) -> None:
    """The web pages of everything the demo has made; the last line says where they are."""
    from histobench.report.site import build_site

    if not any(output.rglob("*_complete_results.json")):
        return  # everything failed, and has been told
    with console.status("building the web pages"):
        page = build_site(output, output / "site", title="histobench demo")
    console.print(f"open in a browser: {page}", soft_wrap=True)


# The language-model part of the demo: published episodes played again, and a small model without a key.

#: Few and short: on two cores this is a minute.
SMALL_MODEL: dict[str, Any] = {
    "tasks": "quickstart",
    "constrain": True,
    "limit": 4,
    "k": "2",
    "max_tokens": 64,
}
AGENTS = "mint"


def play_agents(output: Path, console: Console) -> None:
    """Play, print the tables; where the model or the sandbox is missing, say so and go on."""
    from histobench.mint import runs

    recording = Path(runs.__file__).parent / "demo_recording"
    agent = f"replay:{next(recording.glob('*.jsonl.gz'))}"
    console.print("\nLanguage-model agents: twelve published episodes, played again", style="bold")
    _play_episodes(output, console, agent=agent, tasks="gsm8k", data=str(recording))
    console.print("\nThe same loop with a very small model in this process, on easy sums", style="bold")
    if _play_episodes(output, console, **SMALL_MODEL):
        said = "So small a model solves little. Yours: histobench mint run --agent openai:MODEL"
        console.print(said, soft_wrap=True)


def _play_episodes(output: Path, console: Console, **options: Any) -> bool:
    from histobench.cli.mint import print_summary, progress_display
    from histobench.cli.terminal import open_terminal
    from histobench.mint.runs.options import RunOptions
    from histobench.mint.runs.play import play

    run = RunOptions(**options, output=str(output / AGENTS))
    try:
        played = play(run, lambda counter: progress_display(open_terminal(error=True), counter))
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return False
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    return True


# The Consult part of the demo: a small study, reference agents, and a very small model that asks.

CONSULT = "consult"
ARMS = ("none", "strong", "random", "sequence", "sequence-same")
POLICIES = ("always-trust", "reader", "rational", "learner")
CASES = 36
#: Few and short: on two cores this is half a minute.
CONSULTING_MODEL = {"agent": "local:", "limit": 3, "constrain": True, "max_tokens": 64}


def play_consult(
    table: Path, output: Path, console: Console, *, encoders: Sequence[str], seed: int = 0
) -> None:
    """Prepare, play and print the tables; what is missing is told, and the demo goes on."""
    from histobench.cli.consult_results import TABLES, print_lines
    from histobench.consult.findings import findings_of

    study = output / CONSULT
    console.print(
        f"\nConsult: does an agent use an image encoder well? {CASES} tiles, {len(ARMS)} arms", style="bold"
    )
    try:
        with console.status("asking every encoder about the cases"):
            _prepare_study(table, study, encoders, seed)
        for policy in POLICIES:
            _play_study(study, "all", agent=f"policy:{policy}", max_tokens=800)
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return
    try:
        _play_study(study, "strong", **CONSULTING_MODEL)
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
    findings = findings_of(study)
    lines = findings.lines()
    for title in list(TABLES)[:2]:
        print_lines(console, lines, title)
    for verdict in findings.against_reader():
        console.print(verdict.sentence, soft_wrap=True)
    console.print(f"all measures: histobench consult table {study}", soft_wrap=True)


def _prepare_study(table: Path, study: Path, encoders: Sequence[str], seed: int) -> None:
    from histobench.consult.encoder_views import StudyPlan
    from histobench.consult.preparing import prepare
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


def _play_study(study: Path, arms: str, **options: Any) -> None:
    from functools import partial

    from histobench.cli.mint import progress_display
    from histobench.cli.terminal import open_terminal
    from histobench.consult.playing import ConsultRun, play
    from histobench.mint.runs.options import RunOptions

    run = ConsultRun(str(study), RunOptions(**options), arms, outcomes=True)
    outcome = play(run, display=partial(progress_display, open_terminal(error=True))).outcome
    if not outcome.complete:
        raise HistobenchError("; ".join(map(str, outcome.problems)) or "some episodes were not finished")
