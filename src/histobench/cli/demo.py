"""`histobench demo`: the three parts on synthetic data, in one to two minutes on two cores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import out_option
from histobench.cli.terminal import open_terminal, print_answer, print_overview
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.options import Plan
    from histobench.roi.plan.plan_outcome import BenchmarkOutcome

ENCODERS = ("efficientnet-lite0", "tiny-vl", "random-vit")
#: For Segmentation: the side of its drawn images, training and test patients, steps of the linear readout.
MASK_ENCODERS = ("tiny-vl", "random-vit")
MASK_SIZE, MASK_TRAIN, MASK_TEST, MASK_STEPS = 64, 12, 48, 25
#: Seconds of the short demo on two cores without other work; a line says when it took longer, and why.
ANNOUNCED = 75
HEADING = "Synthetic tissue: a demonstration, not a benchmark"
AGENTS = "mint"
CONSULT = "consult"


@dataclass(frozen=True)
class DemoSize:
    train: int  # tiles per class
    test: int
    tiles_per_patient: int  # of each class
    pixels: int | None  # image side that encoders see; None: each encoder's own
    shots: tuple[int, ...]
    neighbors: int
    robustness: bool
    arms: tuple[str, ...]
    policies: tuple[str, ...]


CASES = 144
#: With 24 test patients, 144 cases and all 48 recorded episodes every interval is narrower than 0.3.
SHORT = DemoSize(
    train=12,
    test=24,
    tiles_per_patient=1,
    pixels=112,
    shots=(1, 4, 8),
    neighbors=5,
    robustness=False,  # its intervals need more patients
    arms=("none", "strong", "random"),
    policies=("always-trust", "rational"),
)
FULL = DemoSize(
    train=40,
    test=60,
    tiles_per_patient=2,
    pixels=None,
    shots=(1, 2, 4, 8, 16, 32),
    neighbors=20,
    robustness=True,
    arms=("none", "strong", "random", "sequence", "sequence-same"),
    policies=("always-trust", "reader", "rational", "learner"),
)


@record
class DemoFlags:
    out: str = out_option("folder to write", default="demo-results")
    full: bool = option(
        "more tiles, full image size, robustness and more agents: several minutes", default=False
    )
    per_class: int | None = option(
        "training tiles per class",
        default=None,
        least=1,
        default_text=f"{SHORT.train}; with --full {FULL.train}",
    )
    test_per_class: int | None = option(
        "test tiles per class", default=None, least=1, default_text=f"{SHORT.test}; with --full {FULL.test}"
    )
    seed: int = option("seed of everything random", default=0, least=0)


def demo_command(args: DemoFlags) -> int:
    """Try everything on synthetic tissue: compare three encoders, segment glands,
    replay agents, run a small Consult study and build the web pages.

    Takes one to two minutes on two cores. Needs no network and no GPU. A program
    draws the tiles: the numbers show that everything works, not which encoder is
    good at pathology.

    Examples:
      histobench demo
      histobench demo --full -o demo-full
    """
    from histobench.core.threads import one_thread
    from histobench.roi.data.demo import write_demo_dataset
    from histobench.roi.plan.whole_benchmark import run_benchmark

    size = FULL if args.full else SHORT
    train, test = args.per_class or size.train, args.test_per_class or size.test
    console = open_terminal()
    output = Path(args.out)
    steps = DemoSteps(console, total=6)
    patients = -(-train // size.tiles_per_patient) + -(-test // size.tiles_per_patient)
    drawing = f"draw {9 * (train + test):,} synthetic tiles of {patients} patients"
    with steps.step(drawing), console.status(drawing):
        table = write_demo_dataset(
            output / "data",
            train_per_class=train,
            test_per_class=test,
            seed=args.seed,
            sites="crossed",
            tiles_per_patient=size.tiles_per_patient,
        )
    plan = demo_plan(table, output, size, args.seed)
    comparing = f"compare {len(ENCODERS)} image encoders in {len(plan.tasks)} tasks"
    with steps.step(comparing), console.status(comparing):
        done = run_benchmark(plan, heading=HEADING)
    segmenting = f"segment glands with the patch tokens of {len(MASK_ENCODERS)} encoders"
    # Two threads would wait for each other on images this small.
    with steps.step(segmenting), console.status(segmenting), one_thread():
        segmented = run_benchmark(segmentation_plan(output, args.seed), heading=HEADING)
    with steps.step("replay a recorded language-model agent that solves tasks"):
        agents = play_agents(output, console)
    with steps.step(f"let agents ask the encoders about {CASES} tiles (Consult)"):
        study = play_consult(table, output, console, size, seed=args.seed)
    with steps.step("build the web pages"):
        page = build_pages(output, console)
    console.print(f"{steps.total_line()}\n")
    print_encoders(segmented, console)
    answer = print_encoders(done, console)
    for line in agents:
        console.print(line)
    if study is not None:
        print_study(study, console)
    if answer:
        print_answer(answer, console)
    if page is not None:
        console.print(f"Look: open {page} in a browser")
    console.print(
        "Next: histobench run --data YOUR_FOLDER --split 0.7/0.3 --encoders efficientnet-lite0,random-vit",
        style="bold",
    )
    outcomes = (done.outcome, segmented.outcome)
    return USER_ERROR if any(each.failures or not each.has_results for each in outcomes) else 0


def print_encoders(done: BenchmarkOutcome, console: Console) -> str:
    """Print encoders x tasks, and what failed; return the answer."""
    from histobench.cli.run import explanations
    from histobench.roi.plan.whole_benchmark import tables_shown

    shown = tables_shown(done)
    for overview in shown.overviews:
        print_overview(overview, console)
    for failure in done.outcome.failures:
        console.print(f"FAILED: {failure.job}: {failure.reason}", style="red")
    if shown.overviews:
        console.print(f"{next(explanations(shown.overviews))}\n")
    return shown.answer


def demo_plan(table: Path, output: Path, size: DemoSize, seed: int) -> Plan:
    from histobench.roi.options import DatasetEntry, Options, Plan, Settings
    from histobench.roi.task_catalogue import DEFAULT_TASKS, ROBUSTNESS

    tasks = (*DEFAULT_TASKS, ROBUSTNESS) if size.robustness else DEFAULT_TASKS

    name = table.stem
    return Plan(
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
        tasks=tasks,
        seed=seed,
        size=size.pixels,
        settings=Settings(batch_size="auto", compile="off"),
        options=Options(n_shot=size.shots, n_neighbors=size.neighbors),
    )


def segmentation_plan(output: Path, seed: int) -> Plan:
    """Draw small images with masks; a small benchmark of the task Segmentation on them."""
    from histobench.roi.data.demo_masks import draw_mask_tiles
    from histobench.roi.options import DatasetEntry, Options, Plan, Settings
    from histobench.roi.task_catalogue import MASK, TARGETS

    drawn = output / "data" / "glands"
    table = draw_mask_tiles(drawn, n_train=MASK_TRAIN, n_test=MASK_TEST, n_tiles=1, size=MASK_SIZE, seed=seed)
    return Plan(
        datasets=(DatasetEntry("synthetic-glands", table),),
        encoders=MASK_ENCODERS,
        results=output / "segmentation",
        tasks=(TARGETS[MASK].task,),
        target=MASK,
        seed=seed,
        size=MASK_SIZE,
        settings=Settings(batch_size="auto", compile="off"),
        options=Options(head_steps=MASK_STEPS),
    )


@dataclass
class DemoSteps:
    """Prints one line per step with its time, and remembers which was the slowest."""

    console: Console
    total: int
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - began
        place = f"{len(self.seconds)}/{self.total}"
        self.console.print(f"{place} {what:<58} {self.seconds[what]:6.1f} s")

    def total_line(self) -> str:
        """How long everything took; where that is long, what took the time."""
        total = sum(self.seconds.values())
        slowest = max(self.seconds, key=lambda what: self.seconds[what])
        late = f"; the longest step: {slowest}" if total > ANNOUNCED else ""
        return f"{total:.0f} s in all{late}"


@contextlib.contextmanager
def _going_on(console: Console) -> Iterator[None]:
    """Say what cannot be done here, and continue."""
    try:
        yield
    except (HistobenchError, OSError) as error:
        console.print(f"left out: {error}")


def build_pages(output: Path, console: Console) -> Path | None:
    from histobench.report.site import build_site

    if not any(output.rglob("*_complete_results.json")):
        return None
    with console.status("building the web pages"):
        return build_site(output, output / "site", title="histobench demo")


def play_agents(output: Path, console: Console) -> list[str]:
    """Play published episodes again; where the sandbox is missing, say so and continue."""
    from histobench.cli.mint import progress_display
    from histobench.mint import runs
    from histobench.mint.results.stored_episode import read_cell
    from histobench.mint.results.uncertainty import rate_interval
    from histobench.mint.runs.play import play
    from histobench.mint.runs.run_options import RunOptions

    recording = Path(runs.__file__).parent / "demo_recording"
    agent = f"replay:{next(recording.glob('*.jsonl.gz'))}"
    run = RunOptions(agent=agent, tasks="gsm8k", data=str(recording), output=str(output / AGENTS))
    lines = []
    with _going_on(console):
        for cell in play(run, lambda counter: progress_display(open_terminal(error=True), counter)).cells:
            if outcomes := [episode.outcome for episode in read_cell(output / AGENTS, cell.cell)]:
                interval, n = rate_interval(outcomes), len(outcomes)
                low, high = (100 * (bound or 0) for bound in (interval.low, interval.high))
                share = 100 * sum(outcome.success for outcome in outcomes) / n
                solved = f"{share:.0f}% [{low:.0f}, {high:.0f}] of {n} tasks"
                lines.append(f"Agents: {cell.cell.model} solves {solved} of {cell.cell.dataset}.")
    return lines


def play_consult(
    table: Path, output: Path, console: Console, size: DemoSize, *, seed: int = 0
) -> Path | None:
    """Prepare and play a small study; where something is missing, say so and continue."""
    from histobench.cli.mint import progress_display
    from histobench.consult.playing import play
    from histobench.consult.preparing import prepare
    from histobench.consult.study_plan import ConsultRun, StudyPlan
    from histobench.mint.runs.run_options import RunOptions
    from histobench.roi.data.source import load_dataset
    from histobench.roi.options import Settings

    study = output / CONSULT
    plan = StudyPlan(
        (ENCODERS[0], ENCODERS[-1]),
        size.arms,
        cases=CASES,
        seed=seed,
        organ="colon",
        region="a synthetic tile that a program has drawn to look like tissue",
        measured=5,
        sequence_length=24,
        size=size.pixels,
        settings=Settings(compile="off"),  # as in the demo's own run, whose features are in the cache
    )
    with _going_on(console):
        with console.status("asking every encoder about the cases"):
            prepare(load_dataset(table, classes_file=table.with_suffix(".txt")), plan, study)
        for policy in size.policies:
            run = ConsultRun(str(study), RunOptions(agent=f"policy:{policy}"), "all", outcomes=True)
            play(run, display=lambda counter: progress_display(open_terminal(error=True), counter))
        return study
    return None


def print_study(study: Path, console: Console) -> None:
    from histobench.cli.consult_results import print_accuracy
    from histobench.consult.findings import findings_of

    findings = findings_of(study)
    print_accuracy(findings.lines(), console)
    console.print(f"none: no encoder; {findings.study.facts.legend}")
    console.print("always-trust: always follows the encoder; rational: only where it is likely right.\n")
